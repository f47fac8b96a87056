#include "support/simulated_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/errno_error.h"

namespace bottomless {
namespace {

constexpr size_t kSector = 512;

std::string key_of(const Files::Path& path) {
  std::string key = path.lexically_normal().string();
  while (key.size() > 1 && key.ends_with('/')) key.pop_back();
  return key;
}

Error error_of(int number, const std::string& attempted, const Files::Path& path) {
  return errno_error(number, attempted + " '" + path.string() + "'");
}

}  // namespace

class SimulatedFiles::SimulatedFile final : public File {
 public:
  SimulatedFile(SimulatedFiles& files, std::shared_ptr<Content> content, Path path)
      : files_(files), content_(std::move(content)), path_(std::move(path)) {}

  Result<Bytes> size() override {
    MutexLock lock(files_.mutex_);
    if (const int number = files_.request(Kind::other)) return error_of(number, "size", path_);
    return content_->now.size();
  }

  Result<size_t> read_some(Bytes offset, std::span<std::byte> into) override {
    MutexLock lock(files_.mutex_);
    if (const int number = files_.request(Kind::read)) return error_of(number, "read", path_);
    if (offset >= content_->now.size()) return size_t{0};
    const size_t moved =
        files_.part_of(std::min<size_t>(into.size(), content_->now.size() - offset));
    std::memcpy(into.data(), content_->now.data() + offset, moved);
    return moved;
  }

  Result<size_t> write_some(Bytes offset, std::span<const std::byte> from) override {
    MutexLock lock(files_.mutex_);
    const uint64_t fired = files_.faults.fired;
    if (const int number = files_.request(Kind::write)) return error_of(number, "write", path_);
    if (files_.faults.fault == FileFault::nothing_written && files_.faults.fired > fired) {
      return size_t{0};
    }
    const size_t moved = files_.part_of(from.size());
    content_->unsynced.push_back(
        {offset, std::string(reinterpret_cast<const char*>(from.data()), moved)});
    apply(content_->unsynced.back(), content_->now);
    return moved;
  }

  Result<void> allocate(Bytes bytes) override {
    MutexLock lock(files_.mutex_);
    if (const int number = files_.request(Kind::other)) return error_of(number, "allocate", path_);
    content_->unsynced.push_back({bytes, {}});
    apply(content_->unsynced.back(), content_->now);
    return {};
  }

  Result<void> sync() override {
    MutexLock lock(files_.mutex_);
    const int number = files_.request(Kind::sync);
    if (number == 0) {
      for (const Write& write : content_->unsynced) apply(write, content_->synced);
    }
    if (!files_.stopped_) content_->unsynced.clear();
    if (number != 0) return error_of(number, "sync", path_);
    return {};
  }

 private:
  SimulatedFiles& files_;
  const std::shared_ptr<Content> content_;
  const Path path_;
};

SimulatedFiles::SimulatedFiles() {
  MutexLock lock(mutex_);
  directories_["/"];
}

int SimulatedFiles::request(Kind kind) {
  const uint64_t number = faults.requests++;
  if (stopped_) return EIO;
  if (faults.fault == FileFault::none || number < faults.at) return 0;
  // What cannot happen to this request waits for one that it can happen to.
  if (faults.fault == FileFault::nothing_written && kind != Kind::write) return 0;
  if (faults.fault == FileFault::no_space && kind == Kind::read) return 0;
  if (faults.fault != FileFault::short_transfer && faults.fired > 0) return 0;
  ++faults.fired;
  switch (faults.fault) {
    case FileFault::io_error:
      return EIO;
    case FileFault::no_space:
      return ENOSPC;
    case FileFault::short_transfer:
      short_ = true;
      return 0;
    case FileFault::stop:
      stopped_ = true;
      return EIO;
    default:
      return 0;
  }
}

size_t SimulatedFiles::part_of(size_t bytes) {
  return short_ && bytes > 1 ? (bytes + 1) / 2 : bytes;
}

void SimulatedFiles::apply(const Change& change, Names& names) {
  for (const auto& [name, content] : change.names) {
    if (content == nullptr) {
      names.erase(name);
    } else {
      names[name] = content;
    }
  }
}

void SimulatedFiles::apply(const Write& write, std::string& content) {
  content.resize(std::max<size_t>(content.size(), write.offset + write.bytes.size()), '\0');
  content.replace(write.offset, write.bytes.size(), write.bytes);
}

std::pair<SimulatedFiles::Directory*, std::string> SimulatedFiles::find(const Path& path) {
  const Path clean(key_of(path));
  const auto found = directories_.find(key_of(clean.parent_path()));
  return {found == directories_.end() ? nullptr : &found->second, clean.filename().string()};
}

Result<std::unique_ptr<File>> SimulatedFiles::open(const Path& path) {
  MutexLock lock(mutex_);
  if (const int number = request(Kind::read)) return error_of(number, "open", path);
  const auto [directory, name] = find(path);
  if (directory == nullptr || !directory->now.contains(name)) {
    return error_of(ENOENT, "open", path);
  }
  return std::unique_ptr<File>(
      std::make_unique<SimulatedFile>(*this, directory->now.at(name), path));
}

Result<std::unique_ptr<File>> SimulatedFiles::create(const Path& path) {
  MutexLock lock(mutex_);
  if (const int number = request(Kind::other)) return error_of(number, "create", path);
  const auto [directory, name] = find(path);
  if (directory == nullptr) return error_of(ENOENT, "create", path);
  if (directory->now.contains(name)) return error_of(EEXIST, "create", path);
  const auto content = std::make_shared<Content>();
  directory->unsynced.push_back({{{name, content}}});
  apply(directory->unsynced.back(), directory->now);
  return std::unique_ptr<File>(std::make_unique<SimulatedFile>(*this, content, path));
}

Result<void> SimulatedFiles::rename(const Path& from, const Path& to) {
  MutexLock lock(mutex_);
  if (const int number = request(Kind::other)) return error_of(number, "rename", from);
  const auto [directory, name] = find(from);
  const auto [target, new_name] = find(to);
  BOTTOMLESS_CHECK(directory == target, "renames between directories are not simulated");
  if (directory == nullptr || !directory->now.contains(name)) {
    return error_of(ENOENT, "rename", from);
  }
  directory->unsynced.push_back({{{new_name, directory->now.at(name)}, {name, nullptr}}});
  apply(directory->unsynced.back(), directory->now);
  return {};
}

Result<void> SimulatedFiles::remove(const Path& path) {
  MutexLock lock(mutex_);
  if (const int number = request(Kind::other)) return error_of(number, "remove", path);
  const auto [directory, name] = find(path);
  if (directory == nullptr || !directory->now.contains(name)) {
    return error_of(ENOENT, "remove", path);
  }
  directory->unsynced.push_back({{{name, nullptr}}});
  apply(directory->unsynced.back(), directory->now);
  return {};
}

Result<void> SimulatedFiles::make_directory(const Path& path) {
  MutexLock lock(mutex_);
  if (const int number = request(Kind::other)) return error_of(number, "make", path);
  const auto [parent, name] = find(path);
  if (parent == nullptr) return error_of(ENOENT, "make", path);
  if (parent->now.contains(name)) return {};
  const auto content = std::make_shared<Content>();
  content->is_directory = true;
  parent->unsynced.push_back({{{name, content}}});
  apply(parent->unsynced.back(), parent->now);
  directories_[key_of(path)];
  return {};
}

Result<std::vector<std::string>> SimulatedFiles::list(const Path& path) {
  MutexLock lock(mutex_);
  if (const int number = request(Kind::read)) return error_of(number, "list", path);
  const auto found = directories_.find(key_of(path));
  if (found == directories_.end()) return error_of(ENOENT, "list", path);
  std::vector<std::string> names;
  for (const auto& [name, content] : found->second.now) names.push_back(name);
  return names;
}

Result<void> SimulatedFiles::sync_directory(const Path& path) {
  MutexLock lock(mutex_);
  const auto found = directories_.find(key_of(path));
  // A failed sync of a directory does not drop changes: they are in the file system's own journal, and may come later.
  if (const int number = request(Kind::sync)) return error_of(number, "sync", path);
  if (found == directories_.end()) return error_of(ENOENT, "sync", path);
  for (const Change& change : found->second.unsynced) apply(change, found->second.synced);
  found->second.unsynced.clear();
  return {};
}

std::unique_ptr<SimulatedFiles> SimulatedFiles::after_kill() const {
  MutexLock lock(mutex_);
  auto files = std::make_unique<SimulatedFiles>();
  MutexLock other_lock(files->mutex_);
  // Names still share their contents where they did, in what is there now and in what is synced.
  std::map<const Content*, std::shared_ptr<Content>> copies;
  const auto copy = [&](std::shared_ptr<Content>& content) {
    if (content == nullptr) return;
    std::shared_ptr<Content>& made = copies[content.get()];
    if (made == nullptr) made = std::make_shared<Content>(*content);
    content = made;
  };
  files->directories_ = directories_;
  for (auto& [path, directory] : files->directories_) {
    for (auto& [name, content] : directory.now) copy(content);
    for (auto& [name, content] : directory.synced) copy(content);
    for (Change& change : directory.unsynced) {
      for (auto& [name, content] : change.names) copy(content);
    }
  }
  return files;
}

std::unique_ptr<SimulatedFiles> SimulatedFiles::after_power_cut(Survives survives,
                                                                Random& random) const {
  std::unique_ptr<SimulatedFiles> files = after_kill();
  const auto kept = [&] {
    return survives == Survives::something ? random.one_in(2) : survives == Survives::everything;
  };
  MutexLock lock(files->mutex_);
  for (auto& [path, directory] : files->directories_) {
    for (const Change& change : directory.unsynced) {
      if (kept()) apply(change, directory.synced);
    }
    directory.unsynced.clear();
    directory.now = directory.synced;
    for (auto& [name, content] : directory.now) {
      for (const Write& write : content->unsynced) {
        if (write.bytes.empty() && kept()) apply(write, content->synced);
        for (size_t at = 0; at < write.bytes.size(); at += kSector) {
          if (kept()) apply({write.offset + at, write.bytes.substr(at, kSector)}, content->synced);
        }
      }
      content->unsynced.clear();
      content->now = content->synced;
    }
  }
  // A directory whose name was lost is lost with all that is in it. Parents come before what is in them.
  for (auto each = files->directories_.begin(); each != files->directories_.end();) {
    const Path path(each->first);
    const auto parent = files->directories_.find(path.parent_path().string());
    const bool is_lost =
        each->first != "/" && (parent == files->directories_.end() ||
                               !parent->second.now.contains(path.filename().string()));
    each = is_lost ? files->directories_.erase(each) : std::next(each);
  }
  return files;
}

void SimulatedFiles::flip_bit(const Path& path, Bytes offset) {
  MutexLock lock(mutex_);
  const auto [directory, name] = find(path);
  BOTTOMLESS_CHECK(directory != nullptr && directory->now.contains(name), "no such file");
  directory->now.at(name)->now.at(offset) ^= 1;
}

void SimulatedFiles::truncate(const Path& path, Bytes bytes) {
  MutexLock lock(mutex_);
  const auto [directory, name] = find(path);
  BOTTOMLESS_CHECK(directory != nullptr && directory->now.contains(name), "no such file");
  directory->now.at(name)->now.resize(bytes);
}

}  // namespace bottomless
