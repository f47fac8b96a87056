// The manifest of a checkpoint, and the entry that another rank sends. The input is one of them; as a manifest it is tried
// as it is, and with the checksum that would be right, or nothing behind that check would ever be reached.
#include "checkpoint/manifest.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/checksum.h"

namespace {

using nlohmann::json;

std::string sealed(std::string_view text) {
  json body = json::parse(text, nullptr, false);
  if (!body.is_object()) return {};
  body.erase("xxh3");
  body["xxh3"] = bottomless::hexadecimal(bottomless::Checksum::of(body.dump()));
  return body.dump();
}

void check_manifest(std::string_view text) {
  const auto manifest = bottomless::parse_manifest(text, "fuzz");
  if (!manifest.ok()) {
    BOTTOMLESS_CHECK(!manifest.error().message.empty(), "an error without a reason");
    return;
  }
  for (const bottomless::FileEntry& file : manifest.value().files) {
    BOTTOMLESS_CHECK(file.name.find('/') == std::string::npos, "a file elsewhere");
    BOTTOMLESS_CHECK(!file.name.empty() && file.name != "." && file.name != "..", "no file");
  }
  const auto written = bottomless::to_json(manifest.value());
  BOTTOMLESS_CHECK(written.ok(), "a manifest that was read cannot be written");
  const auto again = bottomless::parse_manifest(written.value(), "fuzz");
  BOTTOMLESS_CHECK(again.ok() && again.value() == manifest.value(), "the manifest has changed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_manifest(text);
  check_manifest(sealed(text));
  const auto entry = bottomless::parse_file_entry(text);
  if (entry.ok()) {
    const auto again = bottomless::parse_file_entry(bottomless::to_json(entry.value()).value());
    BOTTOMLESS_CHECK(again.ok() && again.value() == entry.value(), "the entry has changed");
  }
  return 0;
}
