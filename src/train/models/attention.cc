#include "train/models/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace bottomless::train {
namespace {

using torch::Tensor;

constexpr double kNever = -std::numeric_limits<double>::infinity();

// What is added to the scores: 0 where a token sees another, else minus infinity. [batch or 1, 1, time, total]
Tensor make_mask(int64_t time, int64_t total, const Positions& positions,
                 std::optional<int64_t> window, at::ScalarType type) {
  const Tensor columns = at::arange(total);
  const Tensor rows = at::arange(total - time, total).unsqueeze(1);
  Tensor seen = columns <= rows;
  if (window) seen = seen.logical_and(columns > rows - *window);
  seen = seen.unsqueeze(0);
  if (const auto& documents = positions.documents())
    seen = seen.logical_and(documents->unsqueeze(2) == documents->unsqueeze(1));
  return at::zeros(seen.sizes(), at::TensorOptions(type))
      .masked_fill_(seen.logical_not(), kNever)
      .unsqueeze(1);
}

void append(Tensor& room, int64_t length, const Tensor& more) {
  const int64_t needed = length + more.size(2);
  if (!room.defined() || room.size(2) < needed) {
    std::vector<int64_t> shape = more.sizes().vec();
    shape[2] = std::max<int64_t>(2 * needed, 64);
    Tensor larger = at::empty(shape, more.options());
    if (length > 0) larger.narrow(2, 0, length).copy_(room.narrow(2, 0, length));
    room = larger;
  }
  room.narrow(2, length, more.size(2)).copy_(more);
}

}  // namespace

Positions Positions::following(int64_t past, int64_t time) {
  return {at::arange(past, past + time).unsqueeze(0), past + time};
}

Positions Positions::packed(const Tensor& documents) {
  const int64_t time = documents.size(1);
  const Tensor index = at::arange(time).expand_as(documents);
  const Tensor begins = at::ones_like(documents, at::TensorOptions(at::kBool));
  begins.narrow(1, 1, time - 1)
      .copy_(documents.narrow(1, 1, time - 1) != documents.narrow(1, 0, time - 1));
  const Tensor begin = std::get<0>(at::cummax(index * begins, 1));
  const Tensor ids = index - begin;
  Positions positions(ids, ids.max().item<int64_t>() + 1);
  positions.documents_ = documents;
  return positions;
}

const Tensor& Positions::once(const std::string& name, const std::function<Tensor()>& make) const {
  const auto found = made_.find(name);
  if (found != made_.end()) return found->second;
  const at::NoGradGuard no_grad;
  return made_.emplace(name, make()).first->second;
}

KeyValueCache::Seen KeyValueCache::add(int64_t index, const Tensor& keys, const Tensor& values) {
  const at::NoGradGuard no_grad;
  Layer& layer = layers_.at(static_cast<size_t>(index));
  append(layer.keys, layer.length, keys);
  append(layer.values, layer.length, values);
  layer.length += keys.size(2);
  return {layer.keys.narrow(2, 0, layer.length), layer.values.narrow(2, 0, layer.length)};
}

int64_t KeyValueCache::length() const { return layers_.empty() ? 0 : layers_.back().length; }

Tensor attend(const Tensor& query, const Tensor& keys, const Tensor& values,
              const Positions& positions, const Attention& attention) {
  const int64_t batch = query.size(0), heads = query.size(1), time = query.size(2),
                total = keys.size(2);
  BOTTOMLESS_CHECK(!positions.documents() || time == total,
                   "packed documents are not generated with a cache");
  const bool windowed = attention.window && *attention.window < total;
  const bool masked = windowed || positions.documents() || (time > 1 && time < total);
  std::optional<Tensor> mask;
  if (masked) {
    const std::string name = "mask " + std::to_string(total) + " " +
                             std::to_string(windowed ? *attention.window : total);
    mask = positions.once(name, [&] {
      return make_mask(time, total, positions,
                       windowed ? attention.window : std::optional<int64_t>(), query.scalar_type());
    });
  }
  const bool causal = !masked && time > 1;
  const Tensor mixed = at::scaled_dot_product_attention(query, keys, values, mask,
                                                        attention.dropout, causal, attention.scale,
                                                        /*enable_gqa=*/keys.size(1) != heads);
  return mixed.transpose(1, 2).reshape({batch, time, heads * query.size(3)});
}

}  // namespace bottomless::train
