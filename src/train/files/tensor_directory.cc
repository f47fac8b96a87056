#include "train/files/tensor_directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/strict_json.h"

namespace bottomless::train {
namespace {

using std::filesystem::path;

constexpr const char* kIndexName = "model.safetensors.index.json";

// The files that hold the model, in the order of their names.
Result<std::vector<std::string>> files_of(Files& files, const path& directory) {
  Result<std::vector<std::string>> names = files.list(directory);
  if (!names.ok()) return names.error();
  const std::vector<std::string>& all = names.value();
  std::set<std::string> found;
  if (std::find(all.begin(), all.end(), kIndexName) != all.end()) {
    const path index = directory / kIndexName;
    const std::string attempted = "read '" + index.string() + "'";
    const Result<std::string> text = read_text(files, index);
    if (!text.ok()) return text.error();
    Result<nlohmann::json> json = parse_strict_json(text.value(), attempted);
    if (!json.ok()) return json.error();
    const auto map = json.value().find("weight_map");
    if (!json.value().is_object() || map == json.value().end() || !map->is_object())
      return Error{
          Code::corrupt,
          attempted + ": it has no 'weight_map'; the file is corrupt: download or write it again"};
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string() || path(file.get<std::string>()).filename() != file.get<std::string>())
        return Error{Code::corrupt, attempted + ": the file of '" + tensor +
                                        "' is no name of a file beside it; the file is corrupt: "
                                        "download or write it again"};
      found.insert(file.get<std::string>());
    }
  } else {
    for (const std::string& name : all)
      if (name.ends_with(".safetensors")) found.insert(name);
  }
  if (found.empty()) {
    return Error{Code::not_found,
                 "load the model in '" + directory.string() +
                     "': there is no *.safetensors file; save the model with transformers' "
                     "save_pretrained(), or name another directory"};
  }
  return std::vector<std::string>(found.begin(), found.end());
}

}  // namespace

Result<TensorDirectory> TensorDirectory::open(Files& files, const path& directory) {
  const Result<std::vector<std::string>> names = files_of(files, directory);
  if (!names.ok()) return names.error();
  TensorDirectory opened;
  for (const std::string& name : names.value()) {
    Result<TensorFileReader> reader = TensorFileReader::open(files, directory / name);
    if (!reader.ok()) return reader.error();
    opened.readers_.push_back(std::make_unique<TensorFileReader>(std::move(reader).value()));
    const TensorFileReader* file = opened.readers_.back().get();
    for (const PlacedTensor& tensor : file->tensors()) {
      const auto [place, is_new] = opened.places_.emplace(tensor.name, Place{file, &tensor});
      if (is_new) continue;
      return Error{Code::corrupt, "load the model in '" + directory.string() + "': tensor '" +
                                      tensor.name + "' stands in '" +
                                      place->second.file->path().filename().string() +
                                      "' and in '" + name + "'; remove what does not belong there"};
    }
  }
  return opened;
}

const TensorDirectory::Place* TensorDirectory::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second;
}

std::string TensorDirectory::any_name() const {
  for (const auto& reader : readers_)
    if (!reader->tensors().empty()) return reader->tensors().front().name;
  return {};
}

}  // namespace bottomless::train
