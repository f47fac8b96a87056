#include "checkpoint/manifest.h"

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>
#include <utility>

#include "checkpoint/checksum.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/strict_json.h"

namespace bottomless {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "bottomless checkpoint";
constexpr uint64_t kVersion = 1;
constexpr const char* kSeal = "xxh3";  // of a tensor, and of the manifest without this field

json json_of(const FileEntry& file) {
  json tensors = json::array();
  for (const TensorEntry& tensor : file.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {kSeal, hexadecimal(tensor.checksum)}});
  }
  return {{"name", file.name}, {"bytes", file.bytes}, {"tensors", std::move(tensors)}};
}

// Throws json::exception where a field is missing or of another type, or says what is wrong with one.
TensorEntry read_tensor(const json& from, std::string& wrong) {
  TensorEntry tensor;
  tensor.name = from.at("name").get<std::string>();
  const auto dtype = dtype_named(from.at("dtype").get<std::string>());
  const auto checksum = parse_hexadecimal(from.at(kSeal).get<std::string>());
  if (!dtype) wrong = "tensor '" + tensor.name + "' has a dtype that is not known";
  if (!checksum) wrong = "tensor '" + tensor.name + "' has a checksum that is none";
  for (const json& length : from.at("shape")) {
    if (!length.is_number_unsigned()) wrong = "tensor '" + tensor.name + "' has no proper shape";
    if (!wrong.empty()) break;
    tensor.shape.push_back(length.get<uint64_t>());
  }
  if (!from.at("shape").is_array()) wrong = "tensor '" + tensor.name + "' has no proper shape";
  tensor.dtype = dtype.value_or(Dtype::u8);
  tensor.checksum = checksum.value_or(0);
  return tensor;
}

FileEntry read_file(const json& from, std::string& wrong) {
  FileEntry file;
  file.name = from.at("name").get<std::string>();
  if (!from.at("bytes").is_number_unsigned()) wrong = "file '" + file.name + "' has no size";
  if (!from.at("tensors").is_array()) wrong = "file '" + file.name + "' has no list of tensors";
  if (!wrong.empty()) return file;
  file.bytes = from.at("bytes").get<Bytes>();
  for (const json& tensor : from.at("tensors")) {
    file.tensors.push_back(read_tensor(tensor, wrong));
    if (!wrong.empty()) break;
  }
  return file;
}

// A name that stays in the directory, whoever wrote it.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestName &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

// What is wrong with entries that were made or read; nothing if they are sound.
std::string contradiction(std::span<const FileEntry> files) {
  std::unordered_map<std::string_view, std::string_view> tensors;  // name -> file
  std::unordered_map<std::string_view, bool> names;
  for (const FileEntry& file : files) {
    if (!is_plain_name(file.name)) return "'" + file.name + "' is not the name of a file in it";
    if (!names.emplace(file.name, true).second) return "file '" + file.name + "' stands twice";
    Bytes most = file.bytes;
    for (const TensorEntry& tensor : file.tensors) {
      const auto [other, is_new] = tensors.emplace(tensor.name, file.name);
      if (!is_new) {
        return "tensor '" + tensor.name + "' stands in '" + std::string(other->second) +
               "' and in '" + file.name + "'; give every tensor its own name";
      }
      const std::optional<Bytes> bytes = bytes_of(tensor.dtype, tensor.shape);
      if (!bytes || *bytes > most) return "the tensors of '" + file.name + "' exceed its size";
      most -= *bytes;
    }
    if (most < kLengthBytes) return "the tensors of '" + file.name + "' leave no room for a header";
  }
  return {};
}

Error damaged(const std::string& attempted, const std::string& what) {
  return {Code::corrupt,
          attempted + ": " + what + "; the file is corrupt: download or write it again"};
}

// The checksum of all the rest. Objects are sorted by name, so the same content has the same text.
Result<std::string> seal_of(json body, const std::string& attempted) {
  body.erase(kSeal);
  Result<std::string> text = write_json(body, -1, attempted);
  if (!text.ok()) return text.error();
  return hexadecimal(Checksum::of(text.value()));
}

Result<Manifest> read_manifest(const json& from, const std::string& attempted) {
  if (!from.is_object() || !from.contains("format") || from["format"] != kFormat) {
    return damaged(attempted, "it is no manifest of a checkpoint");
  }
  const json& version = from.at("version");
  if (!version.is_number_unsigned() || version.get<uint64_t>() != kVersion) {
    return Error{Code::unsupported, attempted + ": it has version " + version.dump() +
                                        ", and this program reads version " +
                                        std::to_string(kVersion) + "; use the one that wrote it"};
  }
  const Result<std::string> seal = seal_of(from, attempted);
  if (!seal.ok()) return seal.error();
  if (from.at(kSeal) != seal.value()) {
    return damaged(attempted, "it is not as it was written (checksums differ)");
  }
  std::string wrong;
  Manifest manifest;
  if (!from.at("step").is_number_unsigned()) wrong = "the step is no whole number";
  if (!from.at("extra").is_object()) wrong = "'extra' is no object";
  if (!from.at("files").is_array()) wrong = "the files are no list";
  if (!wrong.empty()) return damaged(attempted, wrong);
  manifest.step = from.at("step").get<uint64_t>();
  manifest.extra = from.at("extra").dump();
  for (const json& file : from.at("files")) {
    manifest.files.push_back(read_file(file, wrong));
    if (!wrong.empty()) return damaged(attempted, wrong);
  }
  wrong = contradiction(manifest.files);
  if (!wrong.empty()) return damaged(attempted, wrong);
  return manifest;
}

}  // namespace

Result<std::string> to_json(const FileEntry& entry) {
  return write_json(json_of(entry), -1, "describe the file '" + entry.name + "'");
}

Result<FileEntry> parse_file_entry(std::string_view text) {
  const std::string attempted = "read the description of a file that another rank wrote";
  const Result<json> parsed = parse_strict_json(text, attempted);
  if (!parsed.ok()) return parsed.error();
  try {
    std::string wrong;
    FileEntry file = read_file(parsed.value(), wrong);
    if (wrong.empty()) wrong = contradiction({&file, 1});
    if (!wrong.empty()) return damaged(attempted, wrong);
    return file;
  } catch (const json::exception& error) {
    return damaged(attempted, error.what());
  }
}

Result<std::string> to_json(const Manifest& manifest) {
  const std::string attempted =
      "write the manifest of a checkpoint at step " + std::to_string(manifest.step);
  const std::string wrong = contradiction(manifest.files);
  if (!wrong.empty()) return Error{Code::invalid_argument, attempted + ": " + wrong};
  const Result<json> extra = parse_strict_json(manifest.extra, attempted + ", 'extra'");
  if (!extra.ok()) return Error{Code::invalid_argument, extra.error().message};
  if (!extra.value().is_object()) {
    return Error{Code::invalid_argument, attempted + ": 'extra' is no JSON object; make it one"};
  }
  json files = json::array();
  for (const FileEntry& file : manifest.files) files.push_back(json_of(file));
  json body{{"format", kFormat},
            {"version", kVersion},
            {"step", manifest.step},
            {"files", std::move(files)},
            {"extra", extra.value()}};
  const Result<std::string> seal = seal_of(body, attempted);
  if (!seal.ok()) return seal.error();
  body[kSeal] = seal.value();
  return write_json(body, 1, attempted);
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view where) {
  const std::string attempted = "read the manifest '" + std::string(where) + "'";
  const Result<json> parsed = parse_strict_json(text, attempted);
  if (!parsed.ok()) return parsed.error();
  try {
    return read_manifest(parsed.value(), attempted);
  } catch (const json::exception& error) {
    return damaged(attempted, error.what());
  }
}

Result<void> check_files(Files& files, const std::filesystem::path& directory,
                         const Manifest& manifest) {
  for (const FileEntry& entry : manifest.files) {
    const std::filesystem::path path = directory / entry.name;
    const std::string attempted = "open the checkpoint in '" + directory.string() + "': ";
    Result<std::unique_ptr<File>> file = files.open(path);
    if (!file.ok()) {
      // The directory is there, so what is missing is damage, not "no checkpoint".
      const Code code = file.error().code == Code::not_found ? Code::corrupt : file.error().code;
      return Error{code,
                   attempted + file.error().message +
                       "; the manifest names it: bring it back, or download the checkpoint again"};
    }
    const Result<Bytes> size = file.value()->size();
    if (!size.ok()) return size.error();
    if (size.value() != entry.bytes) {
      return Error{Code::corrupt, attempted + "'" + entry.name + "' has " +
                                      std::to_string(size.value()) + " bytes, the manifest says " +
                                      std::to_string(entry.bytes) +
                                      "; the file is corrupt: download or write it again"};
    }
  }
  return {};
}

Result<Manifest> load_manifest(Files& files, const std::filesystem::path& directory,
                               std::string_view name) {
  const std::filesystem::path path = directory / name;
  Result<std::unique_ptr<File>> file = files.open(path);
  if (!file.ok()) return file.error();
  const Result<Bytes> size = file.value()->size();
  if (!size.ok()) return size.error();
  if (size.value() > kMostManifestBytes) {
    return damaged("read the manifest '" + path.string() + "'",
                   "it has " + format_bytes(size.value()) + ", the limit is " +
                       format_bytes(kMostManifestBytes));
  }
  std::string text(size.value(), ' ');
  const Result<void> read =
      read_all(*file.value(), 0, std::as_writable_bytes(std::span(text)), path);
  if (!read.ok()) return read.error();
  Result<Manifest> manifest = parse_manifest(text, path.string());
  if (!manifest.ok()) return manifest.error();
  const Result<void> checked = check_files(files, directory, manifest.value());
  if (!checked.ok()) return checked.error();
  return manifest;
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  const std::filesystem::path parent =
      path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace bottomless
