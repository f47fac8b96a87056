// Where tokens stand, which others they see, and what of these is remembered while text is generated.
// Thread-safety: one thread at a time.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bottomless::train {

// Of the tokens of one forward pass. Use one object with one model only: it keeps what the model works out from it, so
// that this is done once for all layers.
class Positions {
 public:
  // Tokens past, past + 1, ... of each row.
  static Positions following(int64_t past, int64_t time);
  // Several documents in a row, which do not see each other; each counts from 0. `documents`: [batch, time] int64, a
  // number for each document, its tokens side by side.
  static Positions packed(const torch::Tensor& documents);

  const torch::Tensor& ids() const { return ids_; }  // [batch, time] or [1, time]
  const std::optional<torch::Tensor>& documents() const { return documents_; }
  int64_t length() const { return length_; }  // the greatest id, and one

  // What `make` returns, the first time; later what it returned then.
  const torch::Tensor& once(const std::string& name,
                            const std::function<torch::Tensor()>& make) const;

 private:
  Positions(torch::Tensor ids, int64_t length) : ids_(std::move(ids)), length_(length) {}

  torch::Tensor ids_;
  int64_t length_;
  std::optional<torch::Tensor> documents_;
  mutable std::map<std::string, torch::Tensor> made_;
};

// The keys and values of all tokens so far, layer by layer. Without gradients.
class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t layers) : layers_(static_cast<size_t>(layers)) {}

  struct Seen {
    torch::Tensor keys;  // [batch, heads, all tokens so far, head width]
    torch::Tensor values;
  };
  // Adds those of the next tokens, [batch, heads, time, head width]. Views; valid until the next call.
  Seen add(int64_t layer, const torch::Tensor& keys, const torch::Tensor& values);
  int64_t length() const;  // tokens that have passed all layers

 private:
  struct Layer {
    torch::Tensor keys;  // with room for more
    torch::Tensor values;
    int64_t length = 0;
  };
  std::vector<Layer> layers_;
};

struct Attention {
  double scale = 1;
  double dropout = 0;
  std::optional<int64_t> window;
};

// query [batch, heads, time, head width], keys and values of as many tokens or more (then the query's are the last of
// them), with as many heads or a divisor of that. Returns [batch, time, heads * head width].
torch::Tensor attend(const torch::Tensor& query, const torch::Tensor& keys,
                     const torch::Tensor& values, const Positions& positions,
                     const Attention& attention);

}  // namespace bottomless::train
