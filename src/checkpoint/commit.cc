#include "checkpoint/commit.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>
#include <span>
#include <unordered_set>
#include <utility>

#include "checkpoint/checksum.h"

namespace bottomless {
namespace {

constexpr std::string_view kShard = "shard-", kShardEnd = ".safetensors";
constexpr std::string_view kDraft = "manifest-", kDraftEnd = ".json.draft";
constexpr uint64_t kEveryStep = std::numeric_limits<uint64_t>::max();

std::string random_suffix() {
  std::random_device random;
  return hexadecimal(uint64_t{random()} << 32 | random());
}

std::string padded(uint64_t number, size_t digits) {
  std::string text = std::to_string(number);
  if (text.size() < digits) text.insert(0, digits - text.size(), '0');
  return text;
}

// Takes a number and the dash behind it from the front of `text`.
std::optional<uint64_t> take_number(std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data() + text.size() || *end != '-') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return number;
}

bool is_draft(std::string_view name) {
  if (!name.starts_with(kDraft) || !name.ends_with(kDraftEnd)) return false;
  name.remove_prefix(kDraft.size());
  return name.size() > kDraftEnd.size() &&
         parse_hexadecimal(name.substr(0, name.size() - kDraftEnd.size())).has_value();
}

std::unordered_set<std::string> names_in(const Manifest& manifest) {
  std::unordered_set<std::string> names;
  for (const FileEntry& file : manifest.files) names.insert(file.name);
  return names;
}

// Removes what is not kept: drafts, shards up to a step, and shards of the manifest that was replaced.
Removed remove_unnamed(Files& files, const std::filesystem::path& directory,
                       const std::unordered_set<std::string>& kept, uint64_t up_to_step,
                       const std::unordered_set<std::string>& replaced) {
  Removed removed;
  const Result<std::vector<std::string>> names = files.list(directory);
  if (!names.ok()) {
    removed.failed = names.error();
    return removed;
  }
  for (const std::string& name : names.value()) {
    if (kept.contains(name)) continue;
    const std::optional<uint64_t> step = step_of_shard(name);
    const bool is_old_shard = step && (*step <= up_to_step || replaced.contains(name));
    const bool is_old_manifest = name == kPreviousManifestName;
    if (!is_old_shard && !is_old_manifest && !is_draft(name)) continue;
    const Result<void> gone = files.remove(directory / name);
    if (gone.ok()) {
      removed.files.push_back(name);
    } else if (!removed.failed) {
      removed.failed = gone.error();
    }
  }
  return removed;
}

Result<void> write_draft(Files& files, const std::filesystem::path& path, std::string_view text) {
  Result<std::unique_ptr<File>> file = files.create(path);
  if (!file.ok()) return file.error();
  const Result<void> written = write_all(*file.value(), 0, std::as_bytes(std::span(text)), path);
  if (!written.ok()) return written.error();
  return file.value()->sync();
}

// Writes a manifest under a name that nobody else uses, and renames it.
Result<void> replace_manifest(Files& files, const std::filesystem::path& directory,
                              std::string_view text, std::string_view name) {
  const std::filesystem::path draft =
      directory / (std::string(kDraft) + random_suffix() + std::string(kDraftEnd));
  Result<void> done = write_draft(files, draft, text);
  if (done.ok()) done = files.rename(draft, directory / name);
  if (!done.ok()) (void)files.remove(draft);  // or the next commit does
  return done;
}

// What the manifest before the last one names, and its own name; nothing if it is not there, or names what is not. If it could not
// be read, it may be whole: an error.
Result<std::unordered_set<std::string>> previous_names(Files& files,
                                                       const std::filesystem::path& directory) {
  const Result<Manifest> previous = load_manifest(files, directory, kPreviousManifestName);
  std::unordered_set<std::string> names;
  if (previous.ok()) {
    names = names_in(previous.value());
    names.emplace(kPreviousManifestName);
  } else if (previous.error().code != Code::not_found && previous.error().code != Code::corrupt) {
    return previous.error();
  }
  return names;
}

}  // namespace

std::string new_shard_name(uint64_t step, uint32_t rank) {
  return std::string(kShard) + padded(step, 10) + "-" + padded(rank, 5) + "-" + random_suffix() +
         std::string(kShardEnd);
}

std::optional<uint64_t> step_of_shard(std::string_view name) {
  if (!name.starts_with(kShard) || !name.ends_with(kShardEnd)) return std::nullopt;
  name.remove_prefix(kShard.size());
  if (name.size() < kShardEnd.size()) return std::nullopt;
  name.remove_suffix(kShardEnd.size());
  const std::optional<uint64_t> step = take_number(name);
  if (!step || !take_number(name) || !parse_hexadecimal(name)) return std::nullopt;
  return step;
}

Result<std::unique_ptr<TensorFileWriter>> create_shard(Files& files,
                                                       const std::filesystem::path& directory,
                                                       uint64_t step, uint32_t rank,
                                                       std::vector<TensorSpec> tensors) {
  const Result<void> made = files.make_directory(directory);
  if (!made.ok()) return made.error();
  // "pt" is what transformers asks a file for before it loads it.
  return TensorFileWriter::create(files, directory / new_shard_name(step, rank), std::move(tensors),
                                  {{"format", "pt"}});
}

Result<Removed> commit(Files& files, const std::filesystem::path& directory,
                       const Manifest& manifest, Keep keep) {
  const Result<std::string> text = to_json(manifest);
  if (!text.ok()) return text.error();
  // A rank may have written to a directory of the same name on another machine.
  const Result<void> there = check_files(files, directory, manifest);
  if (!there.ok()) return there.error();

  const Result<Manifest> before = load_manifest(files, directory);
  if (!before.ok()) {
    // Perhaps the first checkpoint here: the directory itself may be as new as its files.
    const Result<void> made = files.sync_directory(directory_of(directory));
    if (!made.ok()) return made.error();
  }
  // 1. Every shard is on the disk already, see finish(); now their names are, whoever made them.
  const Result<void> named = files.sync_directory(directory);
  if (!named.ok()) return named.error();
  // The one that is replaced is the previous one from now on, too: until 3. there are two manifests of it.
  if (keep == Keep::last_two && before.ok()) {
    const Result<std::string> old = to_json(before.value());
    if (!old.ok()) return old.error();
    const Result<void> kept =
        replace_manifest(files, directory, old.value(), kPreviousManifestName);
    if (!kept.ok()) return kept.error();
  }
  // 2. The manifest is on the disk under another name, 3. and takes its place.
  const Result<void> replaced = replace_manifest(files, directory, text.value(), kManifestName);
  if (!replaced.ok()) return replaced.error();
  // 4. Before this returns, the disk may still hold the old manifest: nothing that it names may go.
  const Result<void> committed = files.sync_directory(directory);
  if (!committed.ok()) return committed.error();
  // 5. Now the old files may.
  std::unordered_set<std::string> kept = names_in(manifest);
  if (keep == Keep::last_two && before.ok()) {
    kept.merge(names_in(before.value()));
    kept.emplace(kPreviousManifestName);
  } else if (keep == Keep::last_two) {
    Result<std::unordered_set<std::string>> previous = previous_names(files, directory);
    if (!previous.ok()) return Removed{{}, previous.error()};  // the next commit removes them
    kept.merge(previous.value());
  }
  return remove_unnamed(files, directory, kept, manifest.step,
                        before.ok() ? names_in(before.value()) : std::unordered_set<std::string>{});
}

Result<Removed> remove_leftovers(Files& files, const std::filesystem::path& directory) {
  const Result<Manifest> manifest = load_manifest(files, directory);
  if (!manifest.ok() && manifest.error().code != Code::not_found) return manifest.error();
  // Whoever renamed this manifest may have been killed before step 4.
  const Result<void> committed = files.sync_directory(directory);
  if (!committed.ok()) return committed.error();
  std::unordered_set<std::string> kept =
      manifest.ok() ? names_in(manifest.value()) : std::unordered_set<std::string>{};
  Result<std::unordered_set<std::string>> previous = previous_names(files, directory);
  if (!previous.ok()) return previous.error();
  kept.merge(previous.value());
  return remove_unnamed(files, directory, kept, kEveryStep, {});
}

}  // namespace bottomless
