#include "data/tokenise.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "data/sample.h"

namespace bottomless::data {
namespace {

using Pieces = Result<std::vector<EncodedPiece>>;

std::string line_of(const Source& source, uint64_t line) {
  return "'" + source.path.string() + "', line " + std::to_string(line);
}

// Threads that encode chunks; the results come back in the order of the chunks.
// Thread-safety: add() and take() from one thread.
class Workers {
 public:
  using Work = std::function<Pieces(const Chunk&)>;

  explicit Workers(Work work) : work_(std::move(work)) {}
  ~Workers() {
    MutexLock lock(mutex_);
    stopping_ = true;
    wanted_.notify_all();
  }  // the threads, declared last, are joined after this

  Result<void> start(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) {
      Result<Thread> thread = Thread::start("bl-tokens" + std::to_string(i), [this] { run(); });
      if (!thread.ok()) return std::move(thread).error();
      threads_.push_back(std::move(thread).value());
    }
    return {};
  }

  size_t under_way() {
    MutexLock lock(mutex_);
    return jobs_.size();
  }

  void add(Chunk chunk) {
    MutexLock lock(mutex_);
    jobs_.push_back({std::move(chunk), {}});
    wanted_.notify_one();
  }

  // The oldest one's result, when it is there.
  Pieces take() {
    MutexLock lock(mutex_);
    BOTTOMLESS_CHECK(!jobs_.empty(), "nothing is under way");
    while (!jobs_.front().result.has_value()) done_.wait(mutex_);
    Pieces result = std::move(*jobs_.front().result);
    jobs_.pop_front();
    --begun_;
    return result;
  }

 private:
  struct Job {
    Chunk chunk;
    std::optional<Pieces> result;
  };

  void run() {
    MutexLock lock(mutex_);
    for (;;) {
      while (!stopping_ && begun_ == jobs_.size()) wanted_.wait(mutex_);
      if (stopping_) return;
      Job& job = jobs_[begun_++];  // a deque keeps its place while others come and go at the ends
      mutex_.unlock();
      Pieces result = work_(job.chunk);
      mutex_.lock();
      job.chunk = {};
      job.result = std::move(result);
      done_.notify_one();
    }
  }

  const Work work_;
  Mutex mutex_;
  CondVar wanted_, done_;
  std::deque<Job> jobs_ BOTTOMLESS_GUARDED_BY(mutex_);
  size_t begun_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // the first so many jobs
  bool stopping_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

Result<std::vector<EncodedPiece>> encode_lines(const Chunk& chunk, const Source& source,
                                               const Encoder& encoder) {
  std::vector<EncodedPiece> pieces;
  const std::string_view bytes = chunk.bytes;
  uint64_t number = chunk.first_line;
  for (size_t begin = 0; begin < bytes.size(); ++number) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = bytes.substr(begin, end - begin);
    begin = end + 1;
    if (is_blank(line)) continue;
    const std::string where = line_of(source, number);
    const Result<Sample> sample = parse_sample(line, where);
    if (!sample.ok()) return sample.error();
    Result<Encoded> encoded = encode(sample.value(), encoder, where);
    if (!encoded.ok()) return encoded.error();
    const auto kind =
        std::holds_alternative<Text>(sample.value()) ? DocumentKind::text : DocumentKind::sample;
    pieces.push_back({std::move(encoded).value(), kind, Piece::ends});
  }
  return pieces;
}

Result<EncodedPiece> encode_text(std::string_view text, const Encoder& encoder, bool begins,
                                 bool ends) {
  EncodedPiece piece{.piece = ends ? Piece::ends : Piece::goes_on};
  Encoded& to = piece.encoded;
  if (begins && encoder.beginning().has_value()) {
    to.tokens.push_back(*encoder.beginning());
    to.counts.push_back(0);
  }
  const Result<std::vector<int32_t>> tokens = encoder.encode(text);
  if (!tokens.ok()) return tokens.error();
  to.tokens.insert(to.tokens.end(), tokens.value().begin(), tokens.value().end());
  if (ends && encoder.end().has_value()) to.tokens.push_back(*encoder.end());
  to.counts.resize(to.tokens.size(), 1);
  return piece;
}

// The documents of a chunk that lie between blank lines. The last may go on in the next chunk.
Result<std::vector<EncodedPiece>> encode_paragraphs(const Chunk& chunk, const Encoder& encoder) {
  std::vector<EncodedPiece> pieces;
  const std::string_view bytes = chunk.bytes;
  bool begins = chunk.begins_document;
  std::optional<size_t> from;  // where the paragraph begins that is not over yet
  if (!begins) from = 0;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const bool blank = is_blank(bytes.substr(begin, end - begin));
    if (blank && from.has_value()) {
      const size_t length = begin > *from ? begin - *from - 1 : 0;  // without the end of its line
      Result<EncodedPiece> piece = encode_text(bytes.substr(*from, length), encoder, begins, true);
      if (!piece.ok()) return std::move(piece).error();
      pieces.push_back(std::move(piece).value());
      from.reset();
      begins = true;
    } else if (!blank && !from.has_value()) {
      from = begin;
    }
    begin = end + 1;
  }
  if (from.has_value()) {
    std::string_view rest = bytes.substr(*from);
    if (chunk.ends_document && rest.ends_with('\n')) rest.remove_suffix(1);
    Result<EncodedPiece> piece = encode_text(rest, encoder, begins, chunk.ends_document);
    if (!piece.ok()) return std::move(piece).error();
    pieces.push_back(std::move(piece).value());
  }
  return pieces;
}

Error described(const Error& error, const std::filesystem::path& path, const TokenTable& so_far) {
  if (error.code != Code::no_space) return error;
  return {Code::no_space, "tokenise the data into '" + path.string() +
                              "': the disk was full after " +
                              format_bytes(so_far.tokens * so_far.token_bytes) +
                              "; make room there, or name another directory for the cache"};
}

Result<void> fill(TokenFileWriter& writer, ChunkReader& reader, Workers& workers,
                  const TokeniseOptions& options) {
  bool at_end = false;
  while (!at_end || workers.under_way() > 0) {
    std::optional<Error> unreadable;
    while (!at_end && workers.under_way() < 2 * options.threads) {
      Result<std::optional<Chunk>> chunk = reader.next();
      if (!chunk.ok()) unreadable = chunk.error();
      at_end = !chunk.ok() || !chunk.value().has_value();
      if (!at_end) workers.add(std::move(*chunk.value()));
    }
    // What lies before a place that cannot be read may have an earlier error.
    do {
      if (workers.under_way() == 0) break;
      const Pieces pieces = workers.take();
      if (!pieces.ok()) return pieces.error();
      for (const EncodedPiece& piece : pieces.value()) {
        const Result<void> added = writer.add(piece.encoded, piece.kind, piece.piece);
        if (!added.ok()) return added;
      }
    } while (unreadable.has_value());
    if (unreadable.has_value()) return *unreadable;
    if (options.progress) options.progress(reader.bytes_read());
  }
  return {};
}

}  // namespace

Result<std::vector<EncodedPiece>> encode_chunk(const Chunk& chunk, const Source& source,
                                               const Encoder& encoder, TextDocuments documents) {
  if (source.format == Format::jsonl) return encode_lines(chunk, source, encoder);
  const size_t valid = valid_utf8_prefix(chunk.bytes);
  if (valid != chunk.bytes.size()) {
    const auto before = static_cast<uint64_t>(
        std::count(chunk.bytes.begin(), chunk.bytes.begin() + static_cast<long>(valid), '\n'));
    return Error{Code::invalid_argument,
                 "read the text in " + line_of(source, chunk.first_line + before) +
                     ": it is not UTF-8; convert the file, for example with iconv -t UTF-8, or "
                     "leave it out"};
  }
  const auto in_source = [&](const Error& error) {
    return Error{error.code, "tokenize " + source.path.string() + ": " + error.message};
  };
  if (documents == TextDocuments::between_blank_lines) {
    Result<std::vector<EncodedPiece>> pieces = encode_paragraphs(chunk, encoder);
    return pieces.ok() ? std::move(pieces) : in_source(pieces.error());
  }
  Result<EncodedPiece> piece =
      encode_text(chunk.bytes, encoder, chunk.begins_document, chunk.ends_document);
  if (!piece.ok()) return in_source(piece.error());
  std::vector<EncodedPiece> pieces;
  pieces.push_back(std::move(piece).value());
  return pieces;
}

Result<TokenTable> make_token_file(Files& files, const std::filesystem::path& path,
                                   std::span<const Source> sources, const Encoder& encoder,
                                   uint64_t key, const TokeniseOptions& options) {
  BOTTOMLESS_CHECK(options.threads > 0, "somebody must do the work");
  Result<TokenFileWriter> writer = TokenFileWriter::create(files, path, encoder.vocabulary_size());
  if (!writer.ok()) return described(writer.error(), path, {});
  ChunkReader reader(files, sources, options.documents, options.chunk_bytes);
  Result<void> done;
  {
    Workers workers([&](const Chunk& chunk) {
      return encode_chunk(chunk, sources[chunk.source], encoder, options.documents);
    });
    done = workers.start(options.threads);
    if (done.ok()) done = fill(writer.value(), reader, workers, options);
  }
  if (done.ok()) done = writer.value().finish(key, reader.identities());
  if (done.ok()) return writer.value().table();
  (void)files.remove(path);  // what went wrong first is what the user should hear of
  return described(done.error(), path, writer.value().table());
}

}  // namespace bottomless::data
