#include "data/cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>

#include "base/errno_error.h"
#include "base/unique_fd.h"
#include "checkpoint/checksum.h"

namespace bottomless::data {
namespace {

constexpr std::string_view kDraft = ".draft-";
constexpr uint64_t kTokenising = 1;  // raised when the same data would give other tokens

void add(Checksum& sum, uint64_t number) { sum.add(std::as_bytes(std::span(&number, 1))); }
void add(Checksum& sum, std::string_view text) {
  add(sum, text.size());
  sum.add(std::as_bytes(std::span(text)));
}

Result<uint64_t> content_of(Files& files, const std::filesystem::path& path) {
  const Result<std::unique_ptr<File>> file = files.open(path);
  if (!file.ok()) return file.error();
  Checksum sum;
  std::vector<std::byte> buffer(1_MiB);
  for (Bytes offset = 0;;) {
    const Result<size_t> got = file.value()->read_some(offset, buffer);
    if (!got.ok()) return got.error();
    if (got.value() == 0) return sum.value();
    sum.add(std::span(buffer).first(got.value()));
    offset += got.value();
  }
}

Result<bool> is_same(Files& files, const Source& source, const SourceIdentity& was) {
  const Result<std::unique_ptr<File>> file = files.open(source.path);
  if (!file.ok()) return file.error();
  const Result<Bytes> size = file.value()->size();
  if (!size.ok()) return size.error();
  if (size.value() != was.bytes) return false;
  if (source.modified_ns == was.modified_ns) return true;
  const Result<uint64_t> content = content_of(files, source.path);
  if (!content.ok()) return content.error();
  return content.value() == was.content;
}

// A process that was killed leaves its draft; one that lives still writes to it.
void remove_leftovers(Files& files, const std::filesystem::path& path) {
  const Result<std::vector<std::string>> names = files.list(path.parent_path());
  if (!names.ok()) return;
  const std::string prefix = path.filename().string() + std::string(kDraft);
  for (const std::string& name : names.value()) {
    if (!name.starts_with(prefix)) continue;
    pid_t writer = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), writer);
    const bool lives =
        writer > 0 && writer != ::getpid() && (::kill(writer, 0) == 0 || errno == EPERM);
    if (!lives) (void)files.remove(path.parent_path() / name);
  }
}

}  // namespace

class TokenCache::Mapping {
 public:
  static Result<std::unique_ptr<Mapping>> open(const std::filesystem::path& path) {
    const std::string attempted = "map the tokens in '" + path.string() + "'";
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return errno_error(errno, attempted);
    const off_t size = ::lseek(fd.get(), 0, SEEK_END);
    if (size < 0) return errno_error(errno, attempted);
    void* at = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) return errno_error(errno, attempted);
    // Rows are taken from all over the file: what lies around them would be read for nothing.
    (void)::madvise(at, static_cast<size_t>(size), MADV_RANDOM);
    return std::unique_ptr<Mapping>(
        new Mapping({static_cast<const std::byte*>(at), static_cast<size_t>(size)}));
  }
  ~Mapping() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // They stay in the page cache, but are not this process's memory any more. A fault maps what is cached around it, too.
  void give_back(std::span<const std::byte> part) const {
    constexpr uintptr_t kMappedAround = 64_KiB;
    const auto address = [](const std::byte* at) { return reinterpret_cast<uintptr_t>(at); };
    const uintptr_t first = address(part.data()) / kMappedAround * kMappedAround;
    const uintptr_t last = (address(part.data() + part.size()) / kMappedAround + 1) * kMappedAround;
    const uintptr_t begin = std::max(first, address(bytes_.data()));
    const uintptr_t end = std::min(last, address(bytes_.data() + bytes_.size()));
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

 private:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  const std::span<const std::byte> bytes_;
};

TokenCache::TokenCache(std::filesystem::path path, std::unique_ptr<Mapping> mapping,
                       TokenTable table, bool was_made)
    : path_(std::move(path)),
      mapping_(std::move(mapping)),
      tokens_(std::make_unique<Tokens>(
          mapping_->bytes(), std::move(table),
          [mapping = mapping_.get()](auto part) { mapping->give_back(part); })),
      was_made_(was_made) {}

TokenCache::TokenCache(TokenCache&& other) noexcept = default;
TokenCache& TokenCache::operator=(TokenCache&& other) noexcept = default;
TokenCache::~TokenCache() = default;

uint64_t cache_key(std::span<const Source> sources, const Encoder& encoder,
                   TextDocuments documents) {
  Checksum sum;
  add(sum, kTokenising);
  add(sum, encoder.fingerprint());
  add(sum, static_cast<uint64_t>(encoder.vocabulary_size()));
  add(sum, static_cast<uint64_t>(encoder.beginning().value_or(-1)));
  add(sum, static_cast<uint64_t>(encoder.end().value_or(-1)));
  add(sum, static_cast<uint64_t>(documents));
  for (const Source& source : sources) add(sum, source.path.lexically_normal().string());
  return sum.value();
}

Result<TokenTable> check_token_file(Files& files, const std::filesystem::path& path, uint64_t key,
                                    std::span<const Source> sources) {
  const auto invalidated = [&](const std::string& why) {
    return Error{Code::corrupt, "use the tokens in '" + path.string() + "' again: " + why +
                                    "; they are made from the data once more"};
  };
  const Result<std::unique_ptr<File>> file = files.open(path);
  if (!file.ok()) return file.error();
  Result<TokenTable> table = read_token_table(*file.value(), path);
  if (!table.ok()) return table;
  if (table.value().key != key || table.value().sources.size() != sources.size()) {
    return invalidated("they are of other files or another tokenizer");
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const Result<bool> same = is_same(files, sources[i], table.value().sources[i]);
    if (!same.ok()) return same.error();
    if (!same.value()) return invalidated("'" + sources[i].path.string() + "' has changed");
  }
  const Result<void> whole = verify_blocks(*file.value(), table.value(), path);
  if (!whole.ok()) return whole.error();
  return table;
}

Result<TokenTable> replace_token_file(Files& files, const std::filesystem::path& path,
                                      std::span<const Source> sources, const Encoder& encoder,
                                      uint64_t key, const TokeniseOptions& options) {
  remove_leftovers(files, path);
  std::filesystem::path draft = path;
  draft += std::string(kDraft) + std::to_string(::getpid());
  Result<TokenTable> table = make_token_file(files, draft, sources, encoder, key, options);
  if (!table.ok()) return table;
  const Result<void> renamed = files.rename(draft, path);
  if (!renamed.ok()) {
    (void)files.remove(draft);
    return renamed.error();
  }
  const Result<void> synced = files.sync_directory(path.parent_path());
  if (!synced.ok()) return synced.error();
  return table;
}

Result<TokenCache> TokenCache::open(Files& files, const CacheRequest& request,
                                    const Encoder& encoder) {
  const Result<std::vector<Source>> sources = find_sources(request.data);
  if (!sources.ok()) return sources.error();
  const uint64_t key = cache_key(sources.value(), encoder, request.options.documents);
  const auto path = request.directory / ("tokens-" + hexadecimal(key) + ".bltok");
  Result<TokenTable> table = check_token_file(files, path, key, sources.value());
  const bool was_made = !table.ok();
  if (was_made) {
    table = replace_token_file(files, path, sources.value(), encoder, key, request.options);
    if (!table.ok()) return std::move(table).error();
  }
  Result<std::unique_ptr<Mapping>> mapping = Mapping::open(path);
  if (!mapping.ok()) return std::move(mapping).error();
  return TokenCache(path, std::move(mapping).value(), std::move(table).value(), was_made);
}

}  // namespace bottomless::data
