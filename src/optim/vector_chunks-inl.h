// The loops over a chunk: read, update, write. Included once per SIMD target; see kernels.cc.
#if defined(BOTTOMLESS_OPTIM_VECTOR_CHUNKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BOTTOMLESS_OPTIM_VECTOR_CHUNKS_INL_H
#undef BOTTOMLESS_OPTIM_VECTOR_CHUNKS_INL_H
#else
#define BOTTOMLESS_OPTIM_VECTOR_CHUNKS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>

#include "optim/vector_arrays-inl.h"
#include "optim/vector_blocks-inl.h"
#include "optim/vector_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

struct Chunk {
  void* parameter = nullptr;
  void* copy = nullptr;
  const void* gradient = nullptr;
  StateChunk first, second;
  size_t count = 0;  // padded
};

template <class Elements, StateKind kFirst, StateKind kSecond>
inline constexpr bool kHasFloat32 =
    Elements::kParameter == Element::float32 || Elements::kGradient == Element::float32 ||
    kFirst == StateKind::float32 || kSecond == StateKind::float32;

// Alternating elements suit everything but float32.
template <class Elements, StateKind kFirst, StateKind kSecond>
inline constexpr Order kOrderOf =
    kHasFloat32<Elements, kFirst, kSecond> ? Order::halves : kBestOrder;

template <StateKind... kKinds>
inline constexpr bool kMayQuantise =
    ((kKinds == StateKind::quantised || kKinds == StateKind::any) || ...);

// Known at compile time but for `any`.
template <StateKind kKind>
HWY_INLINE bool has_kind(const StateChunk& state, StateKind kind) {
  return kKind == StateKind::any ? state.kind == kind : kKind == kind;
}

template <class Coding, StateKind kKind, Order kOrder>
HWY_INLINE Pair load_state(const StateChunk& state, size_t i, float root_unit) {
  if constexpr (kKind == StateKind::any) {
    if (state.kind == StateKind::float32)
      return load_state<Coding, StateKind::float32, kOrder>(state, i, root_unit);
    if (state.kind == StateKind::quantised)
      return load_state<Coding, StateKind::quantised, kOrder>(state, i, root_unit);
    return load_state<Coding, StateKind::bfloat16, kOrder>(state, i, root_unit);
  } else if constexpr (kKind == StateKind::float32) {
    return load_pair<Element::float32, kOrder>(state.values, i);
  } else if constexpr (kKind == StateKind::bfloat16 || kKind == StateKind::stochastic) {
    return load_pair<Element::bfloat16, kOrder>(state.values, i);
  } else if constexpr (kKind == StateKind::quantised) {
    using Code = typename Coding::Code;
    return decode_pair<Coding, kOrder>(static_cast<const Code*>(state.values) + i, root_unit);
  } else {
    return {hn::Zero(Floats()), hn::Zero(Floats())};
  }
}

// All but quantised ones.
template <StateKind kKind, Order kOrder>
HWY_INLINE void store_state(const StateChunk& state, size_t i, Pair value, Nan nan) {
  if constexpr (kKind == StateKind::any) {
    if (state.kind == StateKind::float32) {
      store_state<StateKind::float32, kOrder>(state, i, value, nan);
    } else if (state.kind == StateKind::bfloat16) {
      store_state<StateKind::bfloat16, kOrder>(state, i, value, nan);
    } else if (state.kind == StateKind::stochastic) {
      store_state<StateKind::stochastic, kOrder>(state, i, value, nan);
    }
  } else if constexpr (kKind == StateKind::float32) {
    store_pair<Element::float32, kOrder>(value, nan, state.values, i);
  } else if constexpr (kKind == StateKind::bfloat16) {
    store_bfloat16_pair<kOrder>(value, nan, static_cast<uint16_t*>(state.values) + i);
  } else if constexpr (kKind == StateKind::stochastic) {
    store_bfloat16_pair<kOrder>(value, nan, state.noise + i % kBlock,
                                static_cast<uint16_t*>(state.values) + i);
  }
}

HWY_INLINE IntVector larger(IntVector largest, Pair v) {
  return hn::Max(largest, hn::Max(magnitude_bits(v.a), magnitude_bits(v.b)));
}

HWY_INLINE int32_t largest_lane(IntVector magnitudes) {
  return hn::GetLane(hn::MaxOfLanes(Ints(), magnitudes));
}

inline constexpr int32_t kInfinity = 0x7F800000;  // as bits

// The gradient of a pair of parameters, times its factor.
template <class Step, class Elements, Order kOrder>
HWY_INLINE Pair load_gradient(const Step& step, const Chunk& chunk, size_t i) {
  const Pair loaded = load_pair<Elements::kGradient, kOrder>(chunk.gradient, i);
  const FloatVector factor = hn::Set(Floats(), step.f.gradient);
  return {hn::Mul(loaded.a, factor), hn::Mul(loaded.b, factor)};
}

template <class Step>
HWY_INLINE Pair decayed(const Step& step, Pair p, Pair g) {
  return {step.decayed(p.a, g.a), step.decayed(p.b, g.b)};
}

template <class Step>
HWY_INLINE Pair update_moments(const Step& step, Pair g, Pair& first, Pair& second) {
  return {step.moments(g.a, first.a, second.a), step.moments(g.b, first.b, second.b)};
}

// False for some that are: where the sum of two is not.
HWY_INLINE bool are_surely_finite(Pair v) {
  const FloatVector sum = hn::Add(v.a, v.b);
  return hn::AllFalse(Floats(), hn::IsNaN(hn::Sub(sum, sum)));
}

// Only what is float32 brings a NaN that is not rounded; infinities may be taken for one.
template <bool kFloat32>
HWY_INLINE Nan nan_in(Pair v) {
  if (!kFloat32) return Nan::rounded;
  return hn::AllFalse(Floats(), hn::IsNaN(hn::Add(v.a, v.b))) ? Nan::rounded : Nan::any;
}

// The kernels return whether all gradients, times the factor, are finite. They take what they read by value: the compiler must
// see that no store changes a factor or a pointer.

// Between the two parts of an update.
struct Begun {
  Pair p, g, first, second, rest;
};

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_INLINE void update_parameter(const Step& step, const Chunk& chunk, size_t i,
                                 const Begun& begun) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  const auto& [p, g, first, second, rest] = begun;
  const Pair updated{step.apply(p.a, g.a, first.a, rest.a), step.apply(p.b, g.b, first.b, rest.b)};
  const Nan nan = nan_in<kHasFloat32<Elements, kFirst, kSecond>>(updated);
  store_pair<Elements::kParameter, kOrder>(updated, nan, chunk.parameter, i);
  if constexpr (Elements::kCopies)
    store_pair<Element::bfloat16, kOrder>(updated, nan, chunk.copy, i);
}

// The processor does not fetch ahead beyond a page by itself, and each array has its own. Not worth its instructions where
// nothing is float32: such kernels wait for arithmetic more than for memory. Nor with AVX-512, whose pairs are so long that the
// processor begins several of them at once and reaches the next page early enough (measured: with it, 30 % more time).
HWY_INLINE void prefetch(const void* array, size_t i, size_t element_bytes) {
  constexpr size_t kAheadBytes = 1024;
  hwy::Prefetch(static_cast<const std::byte*>(array) + i * element_bytes + kAheadBytes);
}

template <class Elements, StateKind kFirst, StateKind kSecond>
HWY_INLINE void prefetch(const Chunk& chunk, size_t i) {
  if (!kHasFloat32<Elements, kFirst, kSecond> || hn::MaxLanes(Floats()) > 8) return;
  constexpr auto kBytes = [](StateKind kind) { return kind == StateKind::float32 ? 4 : 2; };
  prefetch(chunk.parameter, i, bytes_of(Elements::kParameter));
  prefetch(chunk.gradient, i, bytes_of(Elements::kGradient));
  if (kFirst != StateKind::none) prefetch(chunk.first.values, i, kBytes(kFirst));
  if (kSecond != StateKind::none) prefetch(chunk.second.values, i, kBytes(kSecond));
  if (Elements::kCopies) prefetch(chunk.copy, i, bytes_of(Element::bfloat16));
}

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_INLINE Begun begin_pair(const Step& step, const Chunk& chunk, size_t i) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  prefetch<Elements, kFirst, kSecond>(chunk, i);
  const Pair p = load_pair<Elements::kParameter, kOrder>(chunk.parameter, i);
  const Pair g = decayed(step, p, load_gradient<Step, Elements, kOrder>(step, chunk, i));
  Pair first = load_state<FirstCoding, kFirst, kOrder>(chunk.first, i, 0);
  Pair second = load_state<SecondCoding, kSecond, kOrder>(chunk.second, i, 0);
  const Pair rest = update_moments(step, g, first, second);
  return {p, g, first, second, rest};
}

template <StateKind kFirst, StateKind kSecond, Order kOrder>
HWY_INLINE void store_states(const Chunk& chunk, size_t i, const Begun& begun, Nan nan) {
  store_state<kFirst, kOrder>(chunk.first, i, begun.first, nan);
  store_state<kSecond, kOrder>(chunk.second, i, begun.second, nan);
}

// Ends before the first pair whose gradients, with decay, are not surely finite, and returns how many elements it did. A pair
// begins before the one before it ends, because the processor looks ahead not much farther than one pair, and roots and
// quotients take long.
template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_NOINLINE size_t update_finite_pairs(const Step step, const Chunk chunk) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  Begun next = begin_pair<Step, Elements, kFirst, kSecond>(step, chunk, 0);
  if (!are_surely_finite(next.g)) return 0;
  store_states<kFirst, kSecond, kOrder>(chunk, 0, next, Nan::rounded);
  size_t i = pair_lanes();
  for (; i < chunk.count; i += pair_lanes()) {
    const Begun begun = next;
    next = begin_pair<Step, Elements, kFirst, kSecond>(step, chunk, i);
    update_parameter<Step, Elements, kFirst, kSecond>(step, chunk, i - pair_lanes(), begun);
    if (HWY_UNLIKELY(!are_surely_finite(next.g))) return i;
    store_states<kFirst, kSecond, kOrder>(chunk, i, next, Nan::rounded);
  }
  update_parameter<Step, Elements, kFirst, kSecond>(step, chunk, i - pair_lanes(), next);
  return i;
}

// States that are not float32 themselves have a NaN from the gradient. Not many chunks come here.
template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_NOINLINE bool update_any_pairs(const Step step, const Chunk chunk, size_t start) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  IntVector largest_gradient = hn::Zero(Ints());
  for (size_t i = start; i < chunk.count; i += pair_lanes()) {
    largest_gradient =
        larger(largest_gradient, load_gradient<Step, Elements, kOrder>(step, chunk, i));
    const Begun begun = begin_pair<Step, Elements, kFirst, kSecond>(step, chunk, i);
    store_states<kFirst, kSecond, kOrder>(chunk, i, begun, Nan::any);
    update_parameter<Step, Elements, kFirst, kSecond>(step, chunk, i, begun);
  }
  return largest_lane(largest_gradient) < kInfinity;
}

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
bool update_plain_chunk(const Step& step, const Chunk& chunk) {
  const size_t done = update_finite_pairs<Step, Elements, kFirst, kSecond>(step, chunk);
  return done == chunk.count ||
         update_any_pairs<Step, Elements, kFirst, kSecond>(step, chunk, done);
}

// With a quantised state, the scale of a block must be known before any code of it can be written. So a block leaves its new states
// behind in the first-level cache, pairs as they are, and its codes are written while the next block is updated: that keeps the
// processor busy where it waits for roots and quotients.
struct LeftBehind {
  HWY_ALIGN float first[kBlock];
  HWY_ALIGN float second[kBlock];
};

HWY_INLINE void store_as_is(Pair v, float* to) {
  hn::Store(v.a, Floats(), to);
  hn::Store(v.b, Floats(), to + hn::Lanes(Floats()));
}
HWY_INLINE Pair load_as_is(const float* from) {
  return {hn::Load(Floats(), from), hn::Load(Floats(), from + hn::Lanes(Floats()))};
}

template <class Coding, StateKind kKind>
HWY_INLINE void find_scale(const StateChunk& state, size_t block, IntVector largest) {
  if (!has_kind<kKind>(state, StateKind::quantised)) return;
  const auto scale = std::bit_cast<float>(HWY_MIN(largest_lane(largest), kInfinity));
  state.scales[block] = scale;
  state.code_factors[block] = Coding::kBook.code_factor(scale);
}

template <StateKind kKind>
HWY_INLINE float of_block(const StateChunk& state, const float* values, size_t block) {
  return has_kind<kKind>(state, StateKind::quantised) ? values[block] : 0;
}

// A gradient that is not finite makes each state so, and the scale of its block. So gradients need not be looked at where one state
// has finite scales.
template <StateKind kKind>
HWY_INLINE bool has_finite_scales(const StateChunk& state, size_t blocks) {
  if (!has_kind<kKind>(state, StateKind::quantised)) return false;
  for (size_t i = 0; i < blocks; ++i)
    if (std::isinf(state.scales[i])) return false;
  return true;
}

template <class Step, class Elements, Order kOrder>
HWY_NOINLINE bool has_finite_gradients(const Step& step, const Chunk& chunk) {
  IntVector largest = hn::Zero(Ints());
  for (size_t i = 0; i < chunk.count; i += pair_lanes())
    largest = larger(largest, load_gradient<Step, Elements, kOrder>(step, chunk, i));
  return largest_lane(largest) < kInfinity;
}

// One of the blocks of a chunk.
struct BlockAt {
  size_t index;
  size_t start() const { return index * kBlock; }
};

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
class BlockUpdate {
 public:
  HWY_INLINE BlockUpdate(const Chunk& chunk, BlockAt block, LeftBehind& left)
      : left_(left),
        first_unit_(of_block<kFirst>(chunk.first, chunk.first.units, block.index)),
        second_unit_(of_block<kSecond>(chunk.second, chunk.second.units, block.index)),
        largest_first_(hn::Zero(Ints())),
        largest_second_(hn::Zero(Ints())) {}

  HWY_INLINE Begun begin_pair(const Step& step, const Chunk& chunk, size_t i) {
    const Pair p = load_pair<Elements::kParameter, kOrder>(chunk.parameter, i);
    const Pair g = decayed(step, p, load_gradient<Step, Elements, kOrder>(step, chunk, i));
    Pair first = load_state<FirstCoding, kFirst, kOrder>(chunk.first, i, first_unit_);
    Pair second = load_state<SecondCoding, kSecond, kOrder>(chunk.second, i, second_unit_);
    const Pair rest = update_moments(step, g, first, second);
    if (has_kind<kFirst>(chunk.first, StateKind::quantised)) {
      largest_first_ = larger(largest_first_, first);
      store_as_is(first, left_.first + i % kBlock);
    }
    if (has_kind<kSecond>(chunk.second, StateKind::quantised)) {
      largest_second_ = larger(largest_second_, second);
      store_as_is(second, left_.second + i % kBlock);
    }
    store_state<kFirst, kOrder>(chunk.first, i, first, Nan::any);
    store_state<kSecond, kOrder>(chunk.second, i, second, Nan::any);
    return {p, g, first, second, rest};
  }

  HWY_INLINE void find_scales(const Chunk& chunk, BlockAt block) const {
    find_scale<FirstCoding, kFirst>(chunk.first, block.index, largest_first_);
    find_scale<SecondCoding, kSecond>(chunk.second, block.index, largest_second_);
  }

 private:
  static constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;

  LeftBehind& left_;
  const float first_unit_, second_unit_;
  IntVector largest_first_, largest_second_;
};

template <class Coding, StateKind kKind, Order kOrder>
class BlockCodes {
 public:
  HWY_INLINE BlockCodes(const StateChunk& state, BlockAt block, const float* left)
      : left_(left), factor_(of_block<kKind>(state, state.code_factors, block.index)) {}

  HWY_INLINE void encode_pair(const StateChunk& state, BlockAt block, size_t in_block) const {
    if (!has_kind<kKind>(state, StateKind::quantised)) return;
    const Pair value = load_as_is(left_ + in_block), offset = load_as_is(state.offsets + in_block);
    store_lowest_bytes<kOrder>(Coding::encode(value.a, factor_, offset.a),
                               Coding::encode(value.b, factor_, offset.b),
                               codes_of(state, block) + in_block);
  }

  // From the pair at `in_block` on: what the next block has not done, because it is shorter or because there is none.
  HWY_INLINE void finish(const StateChunk& state, BlockAt block, size_t in_block,
                         size_t count) const {
    if (!has_kind<kKind>(state, StateKind::quantised)) return;
    for (size_t i = in_block; i < count; i += pair_lanes()) encode_pair(state, block, i);
    if (std::isinf(state.scales[block.index]))
      encode_infinite_block<Coding, kOrder>(left_, count, codes_of(state, block));
  }

 private:
  using Code = typename Coding::Code;
  static Code* codes_of(const StateChunk& state, BlockAt block) {
    return static_cast<Code*>(state.values) + block.start();
  }

  const float* left_;
  const float factor_;
};

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_NOINLINE bool update_quantised_chunk(const Step step, const Chunk chunk) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  using FirstCodes = BlockCodes<FirstCoding, kFirst, kOrder>;
  using SecondCodes = BlockCodes<SecondCoding, kSecond, kOrder>;
  LeftBehind lefts[2];
  BlockAt block{0};
  for (;; ++block.index) {
    const size_t start = block.start(), end = HWY_MIN(start + kBlock, chunk.count);
    const bool is_first = start == 0;
    const BlockAt before{is_first ? 0 : block.index - 1};
    LeftBehind& left = lefts[block.index % 2];
    const LeftBehind& left_before = lefts[1 - block.index % 2];
    const FirstCodes first_codes(chunk.first, before, left_before.first);
    const SecondCodes second_codes(chunk.second, before, left_before.second);
    BlockUpdate<Step, Elements, kFirst, kSecond> update(chunk, block, left);

    Begun next = update.begin_pair(step, chunk, start);
    for (size_t i = start; i < end; i += pair_lanes()) {
      const Begun begun = next;
      if (i + pair_lanes() < end) next = update.begin_pair(step, chunk, i + pair_lanes());
      if (!is_first) {
        first_codes.encode_pair(chunk.first, before, i - start);
        second_codes.encode_pair(chunk.second, before, i - start);
      }
      update_parameter<Step, Elements, kFirst, kSecond>(step, chunk, i, begun);
    }
    if (!is_first) {
      first_codes.finish(chunk.first, before, end - start, kBlock);
      second_codes.finish(chunk.second, before, end - start, kBlock);
    }
    update.find_scales(chunk, block);
    if (end == chunk.count) break;
  }
  const LeftBehind& left = lefts[block.index % 2];
  const size_t count = chunk.count - block.start();
  FirstCodes(chunk.first, block, left.first).finish(chunk.first, block, 0, count);
  SecondCodes(chunk.second, block, left.second).finish(chunk.second, block, 0, count);
  const size_t blocks = block.index + 1;
  return has_finite_scales<kFirst>(chunk.first, blocks) ||
         has_finite_scales<kSecond>(chunk.second, blocks) ||
         has_finite_gradients<Step, Elements, kOrder>(step, chunk);
}

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
bool update_chunk(const Step& step, const Chunk& chunk) {
  if constexpr (kMayQuantise<kFirst, kSecond>) {
    return update_quantised_chunk<Step, Elements, kFirst, kSecond>(step, chunk);
  } else {
    return update_plain_chunk<Step, Elements, kFirst, kSecond>(step, chunk);
  }
}

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
