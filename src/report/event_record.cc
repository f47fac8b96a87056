#include "report/event_record.h"

#include <array>
#include <bit>

namespace bottomless {
namespace {

// How a value is written in a protocol buffer; it stands in the low bits of the field's number.
enum class Wire : uint32_t { number = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

// Numbers of fields in TensorBoard's event.proto and summary.proto.
constexpr uint32_t kEventTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5,
                   kEventSession = 7;
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueScalar = 2;

void put_number(std::string& to, uint64_t number) {
  for (; number >= 0x80; number >>= 7) to += static_cast<char>(number | 0x80);
  to += static_cast<char>(number);
}

void put_key(std::string& to, uint32_t field, Wire wire) {
  put_number(to, field << 3 | static_cast<uint32_t>(wire));
}

template <class T>
void put_fixed(std::string& to, T value) {
  for (size_t i = 0; i < sizeof value; ++i) to += static_cast<char>(value >> 8 * i);
}

void put_bytes(std::string& to, uint32_t field, std::string_view bytes) {
  put_key(to, field, Wire::bytes);
  put_number(to, bytes.size());
  to += bytes;
}

std::string event(double time, uint64_t step) {
  std::string text;
  put_key(text, kEventTime, Wire::eight_bytes);
  put_fixed(text, std::bit_cast<uint64_t>(time));
  put_key(text, kEventStep, Wire::number);
  put_number(text, step);
  return text;
}

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, the lowest power first
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

// A checksum of data that holds checksums would be weak; so the format turns and shifts it.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8; }

std::string record(const std::string& payload) {
  std::string text;
  put_fixed(text, uint64_t{payload.size()});
  put_fixed(text, masked(crc32c(text)));
  text += payload;
  put_fixed(text, masked(crc32c(payload)));
  return text;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

std::string version_record(double time) {
  std::string text = event(time, 0);
  put_bytes(text, kEventVersion, "brain.Event:2");
  return record(text);
}

std::string start_record(double time, uint64_t step) {
  std::string session;
  put_key(session, kSessionStatus, Wire::number);
  put_number(session, kSessionStart);
  std::string text = event(time, step);
  put_bytes(text, kEventSession, session);
  return record(text);
}

std::string scalar_record(double time, uint64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, kValueTag, scalar.name);
    put_key(value, kValueScalar, Wire::four_bytes);
    put_fixed(value, std::bit_cast<uint32_t>(scalar.value));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string text = event(time, step);
  put_bytes(text, kEventSummary, summary);
  return record(text);
}

}  // namespace bottomless
