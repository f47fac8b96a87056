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
#include "text/tokenizer.h"
#include "train/commands.h"
#include "train/model_directory.h"
#include "train/run_directory.h"

namespace bottomless::train {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kPieceBytes = 4_MiB;

struct Findings {
  fs::path directory;
  std::string kind;
  Verified verified;
};

Result<Verified> verify_checkpoint(Files& files, const fs::path& directory) {
  const Result<Manifest> manifest = load_manifest(files, directory);
  if (!manifest.ok()) return manifest.error();
  return verify(files, directory, manifest.value(), Nonfinite::count);
}

Result<uint64_t> count_nonfinite_in(const TensorDirectory::Place& place,
                                    std::vector<std::byte>& buffer) {
  uint64_t found = 0;
  for (Bytes begin = 0; begin < place.tensor->bytes; begin += kPieceBytes) {
    const Bytes bytes = std::min<Bytes>(kPieceBytes, place.tensor->bytes - begin);
    const std::span piece(buffer.data(), bytes);
    if (Result<void> read = place.file->read(*place.tensor, begin, piece); !read.ok())
      return read.error();
    found += count_nonfinite(place.tensor->dtype, piece);
  }
  return found;
}

Result<Verified> verify_model(Files& files, const fs::path& directory) {
  const Result<ModelConfig> config = load_config(directory);
  if (!config.ok()) return config.error();
  const Result<TensorDirectory> tensors = open_tensors(files, directory, config.value());
  if (!tensors.ok()) return tensors.error();
  Verified verified;
  std::vector<std::byte> buffer(kPieceBytes);
  for (const auto& [name, place] : tensors.value().tensors()) {
    const Result<uint64_t> found = count_nonfinite_in(place, buffer);
    if (!found.ok()) return found.error();
    if (found.value() > 0) verified.nonfinite.push_back({name, found.value()});
    verified.bytes += place.tensor->bytes;
    ++verified.tensors;
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

// What a directory holds: a run's may hold both.
Result<std::vector<Findings>> run(const fs::path& named) {
  const std::unique_ptr<Files> files = make_files();
  std::vector<Findings> all;
  for (const fs::path& directory : {named, RunDirectory{named}.checkpoint()}) {
    if (!fs::exists(directory / kManifestName)) continue;
    const Result<Verified> verified = verify_checkpoint(*files, directory);
    if (!verified.ok()) return verified.error();
    all.push_back({directory, "checkpoint", verified.value()});
  }
  if (const fs::path directory = model_in(named); fs::exists(directory / "config.json")) {
    const Result<Verified> verified = verify_model(*files, directory);
    if (!verified.ok()) return verified.error();
    all.push_back({directory, "model", verified.value()});
  }
  if (all.empty()) {
    return Error{Code::not_found, "verify '" + named.string() +
                                      "': it holds no checkpoint (manifest.json) and no model "
                                      "(config.json); name a directory that does"};
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
  std::printf(findings.kind == "checkpoint" ? ", checksums equal" : "");
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
  app.add_option("directory", options->directory, "Of a model, a checkpoint, or a run")->required();
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
