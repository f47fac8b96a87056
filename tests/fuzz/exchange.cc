// What another rank sends: headers, each followed by its payload. Whatever it is, memory stays as it should, every pull
// ends, and the exchange closes.
#include "ranks/exchange.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "base/check.h"

namespace bottomless {
namespace {

constexpr Bytes kPiece = Store::kAlignment;
constexpr Bytes kFirst = 16;
constexpr Bytes kOffered = 3 * kPiece / 2;
constexpr Bytes kGuard = 64;
constexpr std::byte kUntouched{0x5A};
constexpr uint64_t kLast = ~uint64_t{0} - 1;  // an id

// Rank 0 of two; what rank 1 says is the input, and behind it a question. When that is answered, so is all before it that
// can be, and rank 1 ends.
class Scripted final : public Transport {
 public:
  explicit Scripted(std::span<const std::byte> input) : input_(input) {}
  int rank() const override { return 0; }
  int ranks() const override { return 2; }

  Result<void> send(int, std::span<const std::byte> bytes) override {
    std::lock_guard lock(mutex_);
    if (payload_bytes_ > 0) {
      BOTTOMLESS_CHECK(bytes.size() == payload_bytes_, "a payload of another size was announced");
      payload_bytes_ = 0;
      return {};
    }
    Message message;
    BOTTOMLESS_CHECK(bytes.size() == sizeof message, "neither a header nor a payload");
    std::memcpy(&message, bytes.data(), sizeof message);
    if (message.kind != MessageKind::pull) payload_bytes_ = message.bytes;
    answered_ = answered_ || message.id == kLast;
    changed_.notify_all();
    return {};
  }
  Result<void> receive(int, std::span<std::byte> into) override {
    std::unique_lock lock(mutex_);
    const bool payload = std::exchange(payload_follows_, false);
    if (into.size() > input_.size() && !std::exchange(asked_, true)) {
      const Message last{.kind = MessageKind::pull, .id = kLast, .key = 1, .offset = kFirst};
      if (payload) return Error{Code::io, "the input has ended"};
      std::memcpy(into.data(), &last, sizeof last);
      return {};
    }
    if (asked_) {
      changed_.wait(lock, [&] { return answered_ || closed_; });
      return Error{Code::io, "the input has ended"};
    }
    std::memcpy(into.data(), input_.data(), into.size());
    input_ = input_.subspan(into.size());
    if (payload) return {};
    Message message;
    BOTTOMLESS_CHECK(into.size() == sizeof message, "a payload that was not announced");
    std::memcpy(&message, into.data(), sizeof message);
    payload_follows_ = message.bytes > 0 &&
                       (message.kind == MessageKind::data || message.kind == MessageKind::failed ||
                        message.kind == MessageKind::status);
    return {};
  }
  void close() override {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<const std::byte> input_;
  Bytes payload_bytes_ = 0;       // that come next, of what is sent
  bool payload_follows_ = false;  // of what is received
  bool asked_ = false;
  bool answered_ = false;
  bool closed_ = false;
};

}  // namespace
}  // namespace bottomless

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bottomless;  // NOLINT: of a function
  Scripted transport(std::as_bytes(std::span(data, size)));
  const std::vector<std::byte> offered(kOffered, std::byte{7});
  struct Room {
    std::vector<std::byte> bytes;
    bool ended = false;
  };
  std::array<Room, 3> rooms;
  std::mutex mutex;
  std::condition_variable ended;
  {
    auto exchange = Exchange::start(transport, {.piece_bytes = kPiece});
    BOTTOMLESS_CHECK(exchange.ok(), "no exchange");
    exchange.value()->offer(1, 0, {.address = offered.data(), .first = kFirst, .bytes = kOffered});
    for (size_t i = 0; i < rooms.size(); ++i) {
      const Bytes wanted = i == 0 ? 8 : 2 * kPiece;
      rooms[i].bytes.assign(wanted + 2 * kGuard, kUntouched);
      const bool narrow = i == 2;
      exchange.value()->pull({.from = 1,
                              .key = 2,
                              .into = std::span(rooms[i].bytes).subspan(kGuard, wanted),
                              .format = narrow ? Format::eight_bits : Format::plain,
                              .element = narrow ? Element::bfloat16 : Element::bytes,
                              .what = "get it",
                              .done = [&, i](const Result<void>&) {
                                std::lock_guard lock(mutex);
                                BOTTOMLESS_CHECK(!rooms[i].ended, "a pull ended twice");
                                rooms[i].ended = true;
                                ended.notify_all();
                              }});
    }
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] {
      return std::all_of(rooms.begin(), rooms.end(), [](const Room& room) { return room.ended; });
    });
  }
  for (const Room& room : rooms) {
    const auto untouched = [](std::span<const std::byte> guard) {
      return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kUntouched; });
    };
    const std::span<const std::byte> all = room.bytes;
    BOTTOMLESS_CHECK(untouched(all.first(kGuard)) && untouched(all.last(kGuard)),
                     "a pull wrote outside of its memory");
  }
  return 0;
}
