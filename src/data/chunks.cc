#include "data/chunks.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/errno_error.h"

namespace bottomless::data {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

Format format_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json" ? Format::jsonl
                                                                                 : Format::text;
}

// Behind the last blank line of the text, 0 if there is none.
size_t behind_blank_line(std::string_view text) {
  for (size_t end = text.rfind('\n'); end != std::string_view::npos && end > 0;) {
    const size_t before = text.rfind('\n', end - 1);
    if (before == std::string_view::npos) return 0;
    if (data::is_blank(text.substr(before, end - before))) return end + 1;
    end = before;
  }
  return 0;
}

}  // namespace

bool is_blank(std::string_view line) {
  return line.find_first_not_of(kBlanks) == std::string_view::npos;
}

Result<std::vector<Source>> find_sources(std::span<const std::filesystem::path> paths) {
  std::vector<Source> sources;
  for (const std::filesystem::path& path : paths) {
    struct stat found {};
    if (::stat(path.c_str(), &found) != 0) {
      return errno_error(errno, "look at the data file '" + path.string() + "'",
                         "name files that exist and that you can read");
    }
    if (!S_ISREG(found.st_mode)) {
      return Error{Code::invalid_argument, "look at the data file '" + path.string() +
                                               "': it is no ordinary file; name the files in it"};
    }
    constexpr int64_t kSecond = 1'000'000'000;
    sources.push_back(
        {path, found.st_mtim.tv_sec * kSecond + found.st_mtim.tv_nsec, format_of(path)});
  }
  return sources;
}

ChunkReader::ChunkReader(Files& files, std::span<const Source> sources, TextDocuments documents,
                         Bytes chunk_bytes)
    : files_(files), sources_(sources), documents_(documents), chunk_bytes_(chunk_bytes) {}

Result<void> ChunkReader::open() {
  Result<std::unique_ptr<File>> file = files_.open(sources_[source_].path);
  if (!file.ok()) return std::move(file).error();
  file_ = std::move(file).value();
  offset_ = 0;
  line_ = 1;
  at_end_ = false;
  ends_document_ = only_blanks_ = true;
  checksum_ = Checksum();
  const Result<void> filled = fill(chunk_bytes_);
  if (filled.ok() && buffer_.starts_with(kByteOrderMark)) buffer_.erase(0, kByteOrderMark.size());
  return filled;
}

Result<void> ChunkReader::fill(Bytes bytes) {
  while (!at_end_ && buffer_.size() < bytes) {
    const size_t had = buffer_.size();
    buffer_.resize(bytes);
    const auto into = std::as_writable_bytes(std::span(buffer_).subspan(had));
    const Result<size_t> got = file_->read_some(offset_, into);
    if (!got.ok()) return got.error();
    checksum_.add(into.first(got.value()));
    buffer_.resize(had + got.value());
    offset_ += got.value();
    bytes_read_ += got.value();
    at_end_ = got.value() == 0;
  }
  return {};
}

Result<size_t> ChunkReader::cut_lines() {
  // A little more each time, so that a long line is not searched again and again.
  for (Bytes size = chunk_bytes_;; size *= 2) {
    const Result<void> filled = fill(size);
    if (!filled.ok()) return filled.error();
    if (at_end_) return buffer_.size();
    if (const size_t end = buffer_.rfind('\n'); end != std::string::npos) return end + 1;
    if (size > kLongestLine) {
      return Error{Code::invalid_argument, "read '" + sources_[source_].path.string() + "', line " +
                                               std::to_string(line_) + ": it is longer than " +
                                               format_bytes(kLongestLine) +
                                               "; each line must be one sample"};
    }
  }
}

size_t ChunkReader::cut_text() {
  if (at_end_) return buffer_.size();
  if (documents_ == TextDocuments::between_blank_lines) {
    if (const size_t end = behind_blank_line(buffer_)) return end;
  }
  ends_document_ = false;
  // The last byte only tells whether what stands before it may end a chunk; so a piece that ends the document follows.
  for (size_t i = buffer_.size() - 1; i > buffer_.size() / 2; --i) {
    if (buffer_[i - 1] == '\n' && !is_blank(buffer_[i])) return i;
  }
  const size_t line_end = buffer_.rfind('\n', buffer_.size() - 2);
  if (line_end != std::string::npos && line_end > 0) {
    return documents_ == TextDocuments::per_file ? line_end : line_end + 1;
  }
  size_t end = buffer_.size() - 1;
  for (int i = 0; i < 3 && (buffer_[end] & 0xC0) == 0x80; ++i) --end;
  return end;
}

Result<size_t> ChunkReader::cut() {
  ends_document_ = true;
  if (sources_[source_].format == Format::jsonl) return cut_lines();
  const Result<void> filled = fill(chunk_bytes_ + 1);
  if (!filled.ok()) return filled.error();
  return cut_text();
}

Result<void> ChunkReader::close() {
  if (only_blanks_) {
    return Error{Code::invalid_argument,
                 "read the data file '" + sources_[source_].path.string() + "': it is empty" +
                     (offset_ > 0 ? " but for blanks" : "") + "; leave it out or fill it"};
  }
  identities_.push_back({offset_, sources_[source_].modified_ns, checksum_.value()});
  file_ = nullptr;
  ++source_;
  return {};
}

Result<std::optional<Chunk>> ChunkReader::next() {
  while (source_ < sources_.size()) {
    if (file_ == nullptr) {
      const Result<void> opened = open();
      if (!opened.ok()) return opened.error();
    }
    const bool begins = ends_document_;
    const Result<size_t> end = cut();
    if (!end.ok()) return end.error();
    if (end.value() == 0) {
      const Result<void> closed = close();
      if (!closed.ok()) return closed.error();
      continue;
    }
    Chunk chunk{buffer_.substr(0, end.value()), source_, line_, begins, ends_document_};
    buffer_.erase(0, end.value());
    line_ += static_cast<uint64_t>(std::count(chunk.bytes.begin(), chunk.bytes.end(), '\n'));
    only_blanks_ = only_blanks_ && data::is_blank(std::string_view(chunk.bytes));
    return std::optional<Chunk>(std::move(chunk));
  }
  return std::optional<Chunk>();
}

}  // namespace bottomless::data
