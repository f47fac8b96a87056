// Whole files at once, on whatever Files a test uses.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files.h"

namespace bottomless::data {

inline void write(Files& files, const std::filesystem::path& path, std::string_view text) {
  const auto file = files.create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(write_all(*file.value(), 0, std::as_bytes(std::span(text)), path).ok());
}

inline std::vector<std::byte> bytes_of(Files& files, const std::filesystem::path& path) {
  const auto file = files.open(path);
  std::vector<std::byte> bytes(file.value()->size().value());
  EXPECT_TRUE(read_all(*file.value(), 0, bytes, path).ok());
  return bytes;
}

inline std::string text_of(Files& files, const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = bytes_of(files, path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace bottomless::data
