// A file of tokens. What passes all checks can be read from its first document to its last.
#include "data/token_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace {

using bottomless::Bytes;
using bottomless::Error;
using bottomless::Result;

class MemoryFile final : public bottomless::File {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<Bytes> size() override { return Bytes{bytes_.size()}; }
  Result<size_t> read_some(Bytes offset, std::span<std::byte> into) override {
    if (offset >= bytes_.size()) return size_t{0};
    const size_t moved = std::min<size_t>(into.size(), bytes_.size() - offset);
    std::memcpy(into.data(), bytes_.data() + offset, moved);
    return moved;
  }
  Result<size_t> write_some(Bytes, std::span<const std::byte>) override { return refused(); }
  Result<void> allocate(Bytes) override { return refused(); }
  Result<void> sync() override { return refused(); }

 private:
  static Error refused() { return {bottomless::Code::unsupported, "to read only"}; }
  const std::span<const std::byte> bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Aligned as a mapped file is.
  std::vector<uint64_t> aligned((size + 7) / 8);
  if (size > 0) std::memcpy(aligned.data(), data, size);
  const auto bytes = std::as_bytes(std::span(aligned)).first(size);
  MemoryFile file(bytes);
  const auto table = bottomless::data::read_token_table(file, "fuzz");
  if (!table.ok()) return 0;
  if (!bottomless::data::verify_blocks(file, table.value(), "fuzz").ok()) return 0;
  const bottomless::data::Tokens tokens(bytes, table.value());
  uint64_t read = 0;
  tokens.for_each_document([&](const auto& document) {
    for (uint64_t at = document.begin; at < document.end; ++at) (void)tokens.token(at);
    read += document.end - document.begin;
  });
  BOTTOMLESS_CHECK(read == tokens.size(), "tokens outside of all documents");
  return 0;
}
