// What ranks give each other besides parameters and gradients: sums, buffers, and tensors that are published.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <span>

#include "ranks/shard_protocol.h"
#include "torch/errors.h"
#include "torch/intercept/managed.h"
#include "torch/shard/shard_phase.h"
#include "torch/shard/sharding.h"

namespace bottomless {

Exchange::Key Sharding::offer_values(const at::Tensor& values, int to_ranks) {
  const Exchange::Key key = role_key(Role::values, ++values_asked_);
  if (to_ranks == 0) return key;
  values_.push_back({key, values, values.nbytes() * static_cast<Bytes>(to_ranks)});
  exchange_->offer(key, 1, offered(values, 0, Element::bytes));  // which may be managed
  return key;
}

void Sharding::forget_values() {
  std::erase_if(values_, [&](const Values& values) {
    if (exchange_->given(values.key) < values.wanted) return false;
    exchange_->withdraw(values.key);
    return true;
  });
}

at::Tensor Sharding::sum_over_ranks(const at::Tensor& values) {
  const Phase phase(*this, "exchanging sums");
  const at::Tensor own = values.to(at::kDouble).contiguous().clone();
  const Exchange::Key key = offer_values(own, ranks() - 1);
  check(protocol_->tell_sum(values_asked_));
  at::Tensor sum = at::zeros_like(own);
  at::Tensor theirs = at::empty_like(own);
  for (int from = 0; from < ranks(); ++from) {
    if (from == rank()) {
      sum.add_(own);
      continue;
    }
    pull_into(theirs, from, key, 1, 0, "exchange sums");
    sum.add_(theirs);
  }
  forget_values();
  return sum;
}

void Sharding::copy_from_first(const at::Tensor& tensor) {
  const Phase phase(*this, "taking buffers over from rank 0");
  const at::Tensor copy = tensor.contiguous().clone();
  const Exchange::Key key = offer_values(copy, rank() == 0 ? ranks() - 1 : 0);
  if (rank() != 0 && copy.nbytes() > 0) {
    pull_into(copy, 0, key, 1, 0, "take buffers over");
    tensor.copy_(copy);
  }
  forget_values();
}

std::vector<std::string> Sharding::exchange_texts(const std::string& own) {
  at::Tensor lengths = at::zeros({ranks()}, at::kDouble);
  lengths[rank()] = static_cast<double>(own.size());
  lengths = sum_over_ranks(lengths);
  const Phase phase(*this, "telling others of a checkpoint");
  const auto kept = std::make_shared<std::string>(own);
  const at::Tensor text = at::from_blob(
      kept->data(), {static_cast<int64_t>(own.size())}, [kept](void*) {}, at::kByte);
  const Exchange::Key key = offer_values(text, ranks() - 1);
  std::vector<std::string> texts;
  for (int from = 0; from < ranks(); ++from) {
    std::string& theirs = texts.emplace_back(own);
    if (from == rank()) continue;
    theirs.resize(static_cast<size_t>(lengths[from].item<double>()));
    const auto bytes = std::as_writable_bytes(std::span(theirs));
    for (Bytes done = 0; done < bytes.size(); done += piece_bytes_) {
      check(exchange_->pull_now(
          {.from = from,
           .key = key,
           .version = 1,
           .offset = done,
           .into = bytes.subspan(done, std::min(piece_bytes_, bytes.size() - done)),
           .what = "hear what others say"}));
    }
  }
  forget_values();
  return texts;
}

void Sharding::pull_into(const at::Tensor& into, int from, Exchange::Key key, uint64_t version,
                         Bytes offset, const std::string& what) {
  for (Bytes done = 0; done < into.nbytes(); done += piece_bytes_) {
    const Bytes bytes = std::min<Bytes>(piece_bytes_, into.nbytes() - done);
    Result<PinnedRange> range = pin_range(into, done, bytes, Access::write, what);
    if (!range.ok()) throw_error(range.error());
    check(exchange_->pull_now({.from = from,
                               .key = key,
                               .version = version,
                               .offset = offset + done,
                               .into = {range.value().at, bytes},
                               .what = what}));
  }
}

void Sharding::publish(int64_t number, const at::Tensor& tensor) {
  const Bytes first = 0;
  exchange_->offer(role_key(Role::published, static_cast<uint64_t>(number)), 1,
                   offered(tensor, first, Element::bytes));
}

void Sharding::retract(int64_t number) {
  exchange_->withdraw(role_key(Role::published, static_cast<uint64_t>(number)));
}

void Sharding::read(int rank, int64_t number, Bytes offset, const at::Tensor& into) {
  pull_into(into, rank, role_key(Role::published, static_cast<uint64_t>(number)), 1, offset,
            "read a tensor");
}

void Sharding::wait_until_given(int64_t number, Bytes bytes) {
  const Exchange::Key key = role_key(Role::published, static_cast<uint64_t>(number));
  check(exchange_->wait(
      "wait until others have read a tensor", [&] { return exchange_->given(key) >= bytes; },
      [] { return -1; }));
}

}  // namespace bottomless
