#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"
#include "tokenizers/tokenizer.h"
#include "train/commands/commands.h"
#include "train/files/model_directory.h"
#include "train/models/lora.h"
#include "train/setup/run_directory.h"

namespace bottomless::train {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kPieceBytes = 4_MiB;

struct Findings {
  fs::path directory;
  std::string kind;
  Verified verified;
};

Result<Verified> verify_checkpoint(Files& files, const fs::path& directory, std::string_view name) {
  const Result<Manifest> manifest = load_manifest(files, directory, name);
  if (!manifest.ok()) return manifest.error();
  return verify(files, directory, manifest.value(), Nonfinite::count);
}

// Reads a whole tensor and adds it to what was verified.
Result<void> read_through(const TensorFileReader& file, const PlacedTensor& tensor,
                          std::vector<std::byte>& buffer, Verified& verified) {
  uint64_t found = 0;
  for (Bytes begin = 0; begin < tensor.bytes; begin += kPieceBytes) {
    const Bytes bytes = std::min<Bytes>(kPieceBytes, tensor.bytes - begin);
    const std::span piece(buffer.data(), bytes);
    if (Result<void> read = file.read(tensor, begin, piece); !read.ok()) return read;
    found += count_nonfinite(tensor.dtype, piece);
  }
  if (found > 0) verified.nonfinite.push_back({tensor.name, found});
  verified.bytes += tensor.bytes;
  ++verified.tensors;
  return {};
}

Result<Verified> verify_adapter(Files& files, const fs::path& directory) {
  const Result<TensorFileReader> file = open_adapters(files, directory);
  if (!file.ok()) return file.error();
  Verified verified;
  std::vector<std::byte> buffer(kPieceBytes);
  for (const PlacedTensor& tensor : file.value().tensors()) {
    if (Result<void> read = read_through(file.value(), tensor, buffer, verified); !read.ok())
      return read.error();
  }
  return verified;
}

Result<Verified> verify_model(Files& files, const fs::path& directory) {
  const Result<ModelConfig> config = load_config(directory);
  if (!config.ok()) return config.error();
  const Result<TensorDirectory> tensors = open_tensors(files, directory, config.value());
  if (!tensors.ok()) return tensors.error();
  Verified verified;
  std::vector<std::byte> buffer(kPieceBytes);
  for (const auto& [name, place] : tensors.value().tensors()) {
    if (Result<void> read = read_through(*place.file, *place.tensor, buffer, verified); !read.ok())
      return read.error();
  }
  if (const auto tokenizer = text::open_tokenizer(directory); !tokenizer.ok())
    return tokenizer.error();
  else if (tokenizer.value()->vocabulary_size() > config.value().vocabulary)
    return Error{Code::corrupt, "verify '" + directory.string() + "': the tokenizer has " +
                                    std::to_string(tokenizer.value()->vocabulary_size()) +
                                    " tokens, and the model knows " +
                                    std::to_string(config.value().vocabulary)};
  return verified;
}

// What a directory holds: a run's may hold all of it.
Result<std::vector<Findings>> run(const fs::path& named) {
  const std::unique_ptr<Files> files = make_files();
  std::vector<Findings> all;
  for (const fs::path& directory : {named, RunDirectory{named}.checkpoint()}) {
    for (const auto& [name, kind] :
         {std::pair(kManifestName, "checkpoint"), {kPreviousManifestName, "checkpoint before"}}) {
      if (!fs::exists(directory / name)) continue;
      const Result<Verified> verified = verify_checkpoint(*files, directory, name);
      if (!verified.ok()) return verified.error();
      all.push_back({directory, kind, verified.value()});
    }
  }
  if (const fs::path directory = model_in(named); fs::exists(directory / "config.json")) {
    const Result<Verified> verified = verify_model(*files, directory);
    if (!verified.ok()) return verified.error();
    all.push_back({directory, "model", verified.value()});
  }
  for (const fs::path& directory : {named, RunDirectory{named}.adapter()}) {
    if (!fs::exists(directory / "adapter_config.json")) continue;
    const Result<Verified> verified = verify_adapter(*files, directory);
    if (!verified.ok()) return verified.error();
    all.push_back({directory, "adapter", verified.value()});
  }
  if (all.empty()) {
    return Error{Code::not_found, "verify '" + named.string() +
                                      "': it holds no checkpoint (manifest.json), no model "
                                      "(config.json) and no adapter (adapter_config.json); name a "
                                      "directory that does"};
  }
  return all;
}

nlohmann::json json_of(const Findings& findings) {
  nlohmann::json nonfinite = nlohmann::json::array();
  for (const Verified::Found& found : findings.verified.nonfinite)
    nonfinite.push_back({{"tensor", found.tensor}, {"elements", found.elements}});
  return {{"directory", findings.directory.string()},
          {"kind", findings.kind},
          {"tensors", findings.verified.tensors},
          {"bytes", findings.verified.bytes},
          {"nonfinite", nonfinite}};
}

void print(const Findings& findings) {
  std::printf("%s %s: %lu tensors, %s, complete", findings.kind.c_str(), findings.directory.c_str(),
              static_cast<unsigned long>(findings.verified.tensors),
              format_bytes(findings.verified.bytes).c_str());
  std::printf(findings.kind.starts_with("checkpoint") ? ", checksums equal" : "");
  std::printf(findings.verified.nonfinite.empty() ? ", all finite\n" : "\n");
  for (const Verified::Found& found : findings.verified.nonfinite) {
    std::printf("  not finite: %lu elements of %s\n", static_cast<unsigned long>(found.elements),
                found.tensor.c_str());
  }
}

}  // namespace

std::function<int()> add_verify(CLI::App& app) {
  struct VerifyOptions {
    fs::path directory;
    bool json = false;
  };
  auto options = std::make_shared<VerifyOptions>();
  app.add_option("directory", options->directory, "Of a model, a checkpoint, adapters, or a run")
      ->required();
  app.add_flag("--json", options->json, "Print what was found as JSON");
  return [options] {
    const Result<std::vector<Findings>> found = run(options->directory);
    if (!found.ok()) return tell(found.error());
    bool is_finite = true;
    nlohmann::json list = nlohmann::json::array();
    for (const Findings& findings : found.value()) {
      is_finite &= findings.verified.nonfinite.empty();
      list.push_back(json_of(findings));
      if (!options->json) print(findings);
    }
    if (options->json) std::printf("%s\n", list.dump().c_str());
    return is_finite ? kDone : kFailed;
  };
}

}  // namespace bottomless::train
