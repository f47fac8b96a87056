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

// Alternating elements suit everything but float32.
template <class Elements, StateKind kFirst, StateKind kSecond>
inline constexpr Order kOrderOf =
    Elements::kParameter == Element::float32 || Elements::kGradient == Element::float32 ||
            kFirst == StateKind::float32 || kSecond == StateKind::float32
        ? Order::halves
        : kBestOrder;

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
  uint16_t* const halves = static_cast<uint16_t*>(state.values) + i;
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
    store_bfloat16_pair<kOrder>(value, nan, halves);
  } else if constexpr (kKind == StateKind::stochastic) {
    store_bfloat16_pair<kOrder>(value, nan, state.noise + i % kBlock, halves);
  }
}

HWY_INLINE IntVector larger(IntVector largest, Pair v) {
  return hn::Max(largest, hn::Max(magnitude_bits(v.a), magnitude_bits(v.b)));
}

HWY_INLINE int32_t largest_lane(IntVector magnitudes) {
  return hn::GetLane(hn::MaxOfLanes(Ints(), magnitudes));
}

inline constexpr int32_t kInfinity = 0x7F800000;  // as bits

// The gradient of a pair of parameters, and all that is done to it before the states see it.
template <class Step, class Elements, Order kOrder>
HWY_INLINE Pair load_gradient(const Step& step, const Chunk& chunk, size_t i, Pair p,
                              IntVector& largest) {
  const Pair loaded = load_pair<Elements::kGradient, kOrder>(chunk.gradient, i);
  const FloatVector factor = hn::Set(Floats(), step.f.gradient);
  const Pair g{hn::Mul(loaded.a, factor), hn::Mul(loaded.b, factor)};
  largest = larger(largest, g);
  return {step.decayed(p.a, g.a), step.decayed(p.b, g.b)};
}

template <class Step>
HWY_INLINE Pair update_moments(const Step& step, Pair g, Pair& first, Pair& second) {
  return {step.moments(g.a, first.a, second.a), step.moments(g.b, first.b, second.b)};
}

// Only what is float32 brings a NaN that is not rounded; infinities may be taken for one.
template <Order kOrder>
HWY_INLINE Nan nan_in(Pair v) {
  if (kOrder == Order::alternating) return Nan::rounded;
  const Floats d;
  return hn::AllFalse(d, hn::IsNaN(hn::Add(v.a, v.b))) ? Nan::rounded : Nan::any;
}

template <class Step, class Elements, Order kOrder>
HWY_INLINE void update_parameter(const Step& step, const Chunk& chunk, size_t i, Pair p, Pair g,
                                 Pair first, Pair rest) {
  const Pair updated{step.apply(p.a, g.a, first.a, rest.a), step.apply(p.b, g.b, first.b, rest.b)};
  const Nan nan = nan_in<kOrder>(updated);
  store_pair<Elements::kParameter, kOrder>(updated, nan, chunk.parameter, i);
  if constexpr (Elements::kCopies)
    store_pair<Element::bfloat16, kOrder>(updated, nan, chunk.copy, i);
}

// The kernels return whether all gradients, times the factor, are finite. They take what they read by value: the compiler must
// see that no store changes a factor or a pointer.

// Between the two parts of an update.
struct Begun {
  Pair p, g, first, rest;
};

// The processor does not fetch ahead beyond a page by itself, and each array has its own. Not worth its instructions where
// nothing is float32: such kernels wait for arithmetic more than for memory. Nor with AVX-512, whose pairs are so long that the
// processor begins several of them at once and reaches the next page early enough (measured: with it, 30 % more time).
HWY_INLINE void prefetch(const void* array, size_t i, size_t element_bytes) {
  constexpr size_t kAheadBytes = 1024;
  hwy::Prefetch(static_cast<const std::byte*>(array) + i * element_bytes + kAheadBytes);
}

template <class Elements, StateKind kFirst, StateKind kSecond>
HWY_INLINE void prefetch(const Chunk& chunk, size_t i) {
  if (kOrderOf<Elements, kFirst, kSecond> != Order::halves || hn::MaxLanes(Floats()) > 8) return;
  constexpr auto kBytes = [](StateKind kind) { return kind == StateKind::float32 ? 4 : 2; };
  prefetch(chunk.parameter, i, bytes_of(Elements::kParameter));
  prefetch(chunk.gradient, i, bytes_of(Elements::kGradient));
  if (kFirst != StateKind::none) prefetch(chunk.first.values, i, kBytes(kFirst));
  if (kSecond != StateKind::none) prefetch(chunk.second.values, i, kBytes(kSecond));
  if (Elements::kCopies) prefetch(chunk.copy, i, bytes_of(Element::bfloat16));
}

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_INLINE Begun begin_pair(const Step& step, const Chunk& chunk, size_t i, IntVector& largest) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  prefetch<Elements, kFirst, kSecond>(chunk, i);
  const Pair p = load_pair<Elements::kParameter, kOrder>(chunk.parameter, i);
  const Pair g = load_gradient<Step, Elements, kOrder>(step, chunk, i, p, largest);
  Pair first = load_state<FirstCoding, kFirst, kOrder>(chunk.first, i, 0);
  Pair second = load_state<SecondCoding, kSecond, kOrder>(chunk.second, i, 0);
  const Pair rest = update_moments(step, g, first, second);
  // States that are not float32 themselves have it from the gradient.
  const Nan nan = nan_in<kOrder>(g);
  store_state<kFirst, kOrder>(chunk.first, i, first, nan);
  store_state<kSecond, kOrder>(chunk.second, i, second, nan);
  return {p, g, first, rest};
}

// A pair begins before the one before it ends, because the processor looks ahead not much farther than one pair, and roots
// and quotients take long.
template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_NOINLINE bool update_plain_chunk(const Step step, const Chunk chunk) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  IntVector largest_gradient = hn::Zero(Ints());
  Begun next = begin_pair<Step, Elements, kFirst, kSecond>(step, chunk, 0, largest_gradient);
  for (size_t i = 0; i < chunk.count; i += pair_lanes()) {
    const Begun begun = next;
    if (i + pair_lanes() < chunk.count)
      next = begin_pair<Step, Elements, kFirst, kSecond>(step, chunk, i + pair_lanes(),
                                                         largest_gradient);
    update_parameter<Step, Elements, kOrder>(step, chunk, i, begun.p, begun.g, begun.first,
                                             begun.rest);
  }
  return largest_lane(largest_gradient) < kInfinity;
}

// With a quantised state, the scale of a block must be known before any code of it can be written. So the update leaves behind,
// in the first-level cache, what the codes are made of: the roots of the states. Pairs lie there as they are.
struct LeftBehind {
  HWY_ALIGN float first[kQuantisedChunk];
  HWY_ALIGN float second[kQuantisedChunk];
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
  state.code_factors[block] = scale == 0 ? 0 : Coding::code_factor(scale);
}

template <StateKind kKind>
HWY_INLINE float of_block(const StateChunk& state, const float* values, size_t block) {
  return has_kind<kKind>(state, StateKind::quantised) ? values[block] : 0;
}

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
HWY_NOINLINE bool update_and_leave_behind(const Step step, const Chunk chunk, LeftBehind& left) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  IntVector largest_gradient = hn::Zero(Ints());
  for (size_t start = 0; start < chunk.count; start += kBlock) {
    const size_t block = start / kBlock, end = HWY_MIN(start + kBlock, chunk.count);
    const float first_unit = of_block<kFirst>(chunk.first, chunk.first.root_units, block);
    const float second_unit = of_block<kSecond>(chunk.second, chunk.second.root_units, block);
    IntVector largest_first = hn::Zero(Ints()), largest_second = hn::Zero(Ints());
    for (size_t i = start; i < end; i += pair_lanes()) {
      const Pair p = load_pair<Elements::kParameter, kOrder>(chunk.parameter, i);
      const Pair g = load_gradient<Step, Elements, kOrder>(step, chunk, i, p, largest_gradient);
      Pair first = load_state<FirstCoding, kFirst, kOrder>(chunk.first, i, first_unit);
      Pair second = load_state<SecondCoding, kSecond, kOrder>(chunk.second, i, second_unit);
      const Pair rest = update_moments(step, g, first, second);
      if (has_kind<kFirst>(chunk.first, StateKind::quantised)) {
        largest_first = larger(largest_first, first);
        store_as_is({FirstCoding::root(first.a), FirstCoding::root(first.b)}, left.first + i);
      }
      if (has_kind<kSecond>(chunk.second, StateKind::quantised)) {
        largest_second = larger(largest_second, second);
        store_as_is(rest, left.second + i);
      }
      store_state<kFirst, kOrder>(chunk.first, i, first, Nan::any);
      store_state<kSecond, kOrder>(chunk.second, i, second, Nan::any);
      update_parameter<Step, Elements, kOrder>(step, chunk, i, p, g, first, rest);
    }
    find_scale<FirstCoding, kFirst>(chunk.first, block, largest_first);
    find_scale<SecondCoding, kSecond>(chunk.second, block, largest_second);
  }
  return largest_lane(largest_gradient) < kInfinity;
}

template <class Coding, StateKind kKind, Order kOrder>
HWY_NOINLINE void encode_chunk(const StateChunk state, size_t count, const float* left_behind) {
  if (!has_kind<kKind>(state, StateKind::quantised)) return;
  auto* const codes = static_cast<typename Coding::Code*>(state.values);
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t end = HWY_MIN(start + kBlock, count);
    const float factor = state.code_factors[start / kBlock];
    for (size_t i = start; i < end; i += pair_lanes()) {
      const Pair root = load_as_is(left_behind + i);
      const Pair offset = load_as_is(state.offsets + i % kBlock);
      store_lowest_bytes<kOrder>(Coding::encode(root.a, factor, offset.a),
                                 Coding::encode(root.b, factor, offset.b), codes + i);
    }
    if (std::isinf(state.scales[start / kBlock]))
      encode_infinite_block<Coding, kOrder>(left_behind + start, end - start, codes + start);
  }
}

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
bool update_chunk(const Step& step, const Chunk& chunk) {
  if constexpr (kMayQuantise<kFirst, kSecond>) {
    LeftBehind left;
    constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
    const bool finite = update_and_leave_behind<Step, Elements, kFirst, kSecond>(step, chunk, left);
    encode_chunk<FirstCoding, kFirst, kOrder>(chunk.first, chunk.count, left.first);
    encode_chunk<SecondCoding, kSecond, kOrder>(chunk.second, chunk.count, left.second);
    return finite;
  } else {
    return update_plain_chunk<Step, Elements, kFirst, kSecond>(step, chunk);
  }
}

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
