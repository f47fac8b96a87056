// The tokens of a set of data files, made once and kept in a directory. A file of tokens is used again while its tokenizer, its
// options and its data are what they were: a data file is known by size and time of change, and by its content
// where only the time differs. Anything else, damage included, makes it anew.
// Thread-safety: one thread opens; the tokens may be read by any.
// Lifetime: Tokens borrow from the TokenCache. A new one is written beside the old one and renamed, so a cache that is open stays whole.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "data/tokenise.h"

namespace bottomless::data {

struct CacheRequest {
  std::vector<std::filesystem::path> data;
  std::filesystem::path directory;  // exists
  TokeniseOptions options;
};

class TokenCache {
 public:
  // Over ranks, one opens first and the others when it is done.
  static Result<TokenCache> open(Files& files, const CacheRequest& request, const Encoder& encoder);

  TokenCache(TokenCache&& other) noexcept;
  TokenCache& operator=(TokenCache&& other) noexcept;
  ~TokenCache();

  const Tokens& tokens() const { return *tokens_; }
  const std::filesystem::path& path() const { return path_; }
  bool was_made() const { return was_made_; }  // by this open

 private:
  class Mapping;
  TokenCache(std::filesystem::path path, std::unique_ptr<Mapping> mapping, TokenTable table,
             bool was_made);

  std::filesystem::path path_;
  std::unique_ptr<Mapping> mapping_;
  std::unique_ptr<Tokens> tokens_;
  bool was_made_;
};

// Of the tokenizer, the options and the names of the files; it is part of the cache's name.
uint64_t cache_key(std::span<const Source> sources, const Encoder& encoder,
                   TextDocuments documents);

// The table of `path`, if the file is whole and made from these.
Result<TokenTable> check_token_file(Files& files, const std::filesystem::path& path, uint64_t key,
                                    std::span<const Source> sources);

// Makes `path`: beside it first, then by renaming. Whatever happens, `path` holds what it held or the new file.
Result<TokenTable> replace_token_file(Files& files, const std::filesystem::path& path,
                                      std::span<const Source> sources, const Encoder& encoder,
                                      uint64_t key, const TokeniseOptions& options);

}  // namespace bottomless::data
