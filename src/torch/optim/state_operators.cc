// Operators around an optimizer's update: the squares of gradients, and states of 8 bits.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "optim/gradient_norm.h"
#include "optim/quantised.h"
#include "torch/intercept/square_sums.h"
#include "torch/optim/optimizer_arguments.h"

namespace bottomless {
namespace {

using optim::kBlock;

constexpr int64_t kBlocksAtOnce = 64;  // for a thread

// The squares of up to kSquaresAtOnce elements: pieces of a fixed size are added in their order, so that the number of
// threads does not change a bit.
double sum_at_once(const std::byte* first, optim::Element type, size_t count) {
  constexpr size_t kPiece = size_t{1} << 16;
  std::array<double, kSquaresAtOnce / kPiece> sums{};
  at::parallel_for(
      0, static_cast<int64_t>((count + kPiece - 1) / kPiece), 1, [&](int64_t begin, int64_t end) {
        for (auto piece = static_cast<size_t>(begin); piece < static_cast<size_t>(end); ++piece) {
          const size_t from = piece * kPiece;
          const optim::SquareSum found = optim::sum_of_squares(
              first + from * optim::bytes_of(type), type, std::min(kPiece, count - from));
          sums[piece] = found.sum;
        }
      });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Of a dense tensor, whatever its strides. Not finite, if something is not.
at::Tensor sum_of_squares(const at::Tensor& self) {
  use_wanted_simd();
  TORCH_CHECK(self.is_non_overlapping_and_dense(),
              "bottomless: sum_of_squares needs a dense tensor");
  const optim::Element type = element_of(self, "a gradient");
  const auto* first = static_cast<const std::byte*>(self.const_data_ptr());
  double sum = 0;
  for (int64_t at = 0; at < self.numel(); at += kSquaresAtOnce) {
    sum += sum_at_once(first + static_cast<size_t>(at) * optim::bytes_of(type), type,
                       static_cast<size_t>(std::min(kSquaresAtOnce, self.numel() - at)));
  }
  at::Tensor result = at::empty({}, at::kDouble);
  *result.mutable_data_ptr<double>() = sum;
  return result;
}

// Codes for a tensor of this shape, and their scales, in one storage: they always move together.
std::tuple<at::Tensor, at::Tensor> codes_like(const at::Tensor& self, bool is_signed) {
  check_alike(self, self, "what has 8 bits");
  constexpr int64_t kCacheLine = 64;
  const int64_t room = (self.numel() + kCacheLine - 1) / kCacheLine * kCacheLine;
  const auto blocks = static_cast<int64_t>(optim::block_count(static_cast<size_t>(self.numel())));
  const at::Tensor both = at::empty({room + blocks * int64_t{sizeof(float)}}, at::kChar);
  const at::Tensor codes = both.view(is_signed ? at::kChar : at::kByte);
  return {codes.as_strided(self.sizes(), self.strides()),
          both.narrow(0, room, both.numel() - room).view(at::kFloat)};
}

// Of a state of which every element is `value`.
std::tuple<at::Tensor, at::Tensor> new_codes(const at::Tensor& self, bool is_signed, double value) {
  auto [codes, scales] = codes_like(self, is_signed);
  codes.fill_(value == 0 ? 0 : is_signed ? 127 : 255);
  scales.fill_(value);
  return {codes, scales};
}

template <class Visit>
void each_block(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values,
                Visit visit) {
  check_alike(codes, values, "what has 8 bits");
  check_alike(values, values, "what is to have 8 bits");
  const int64_t count = codes.numel();
  const auto blocks = static_cast<int64_t>(optim::block_count(static_cast<size_t>(count)));
  TORCH_CHECK(scales.numel() == blocks && scales.is_contiguous(),
              "bottomless: 256 codes have one scale");
  auto* each_scale = scales.mutable_data_ptr<float>();
  const auto length = static_cast<int64_t>(kBlock);
  at::parallel_for(0, blocks, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      visit(block * length, std::min((block + 1) * length, count), each_scale[block]);
  });
}

// States of 8 bits and back, for what is saved and loaded.
template <class Code, auto kEncode>
void encode_blocks(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values) {
  const auto* from = values.const_data_ptr<float>();
  auto* to = codes.mutable_data_ptr<Code>();
  each_block(codes, scales, values, [&](int64_t begin, int64_t end, float& scale) {
    scale = optim::block_scale(from + begin, static_cast<size_t>(end - begin));
    for (int64_t i = begin; i < end; ++i) to[i] = kEncode(from[i], scale, optim::kToNearest);
  });
}

template <class Code, auto kDecode>
void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& values) {
  const auto* from = codes.const_data_ptr<Code>();
  auto* to = values.mutable_data_ptr<float>();
  each_block(codes, scales, values, [&](int64_t begin, int64_t end, float scale) {
    for (int64_t i = begin; i < end; ++i) to[i] = kDecode(from[i], scale);
  });
}

at::Tensor& encode(at::Tensor& self, const at::Tensor& self_scales, const at::Tensor& values) {
  if (self.scalar_type() == at::kChar) {
    encode_blocks<int8_t, &optim::encode_first>(self, self_scales, values);
  } else {
    encode_blocks<uint8_t, &optim::encode_second>(self, self_scales, values);
  }
  return self;
}

at::Tensor& decode(at::Tensor& self, const at::Tensor& codes, const at::Tensor& codes_scales) {
  if (codes.scalar_type() == at::kChar) {
    decode_blocks<int8_t, &optim::decode_first>(codes, codes_scales, self);
  } else {
    decode_blocks<uint8_t, &optim::decode_second>(codes, codes_scales, self);
  }
  return self;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(bottomless, library) {
  library.def("sum_of_squares(Tensor self) -> Tensor");
  library.def("new_codes(Tensor self, bool is_signed, float value) -> (Tensor, Tensor)");
  library.def("encode_(Tensor(a!) self, Tensor(b!) self_scales, Tensor values) -> Tensor(a!)");
  library.def("decode_(Tensor(a!) self, Tensor codes, Tensor codes_scales) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(bottomless, CPU, library) {
  library.impl("sum_of_squares", &sum_of_squares);
  library.impl("new_codes", &new_codes);
  library.impl("encode_", &encode);
  library.impl("decode_", &decode);
}

}  // namespace bottomless
