// The conversions of formats.h for a vector of elements at a time. Highway's own conversions to bfloat16 and float16
// truncate on some targets, so these are made of integer operations that are the same on all.
// Included once per SIMD target; see kernels.cc.
#if defined(BOTTOMLESS_OPTIM_VECTOR_FORMATS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BOTTOMLESS_OPTIM_VECTOR_FORMATS_INL_H
#undef BOTTOMLESS_OPTIM_VECTOR_FORMATS_INL_H
#else
#define BOTTOMLESS_OPTIM_VECTOR_FORMATS_INL_H
#endif

#include <hwy/highway.h>

#include "optim/formats.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using FloatVector = hn::Vec<Floats>;
using IntVector = hn::Vec<Ints>;

template <class D>
using WordsOf = hn::RebindToUnsigned<D>;
template <class D>
using WordVector = hn::Vec<WordsOf<D>>;

// `D` is a tag of floats.
template <class D>
HWY_INLINE WordVector<D> word(D, uint32_t value) {
  return hn::Set(WordsOf<D>(), value);
}
template <class D>
HWY_INLINE WordVector<D> bits_of(D, hn::Vec<D> v) {
  return hn::BitCast(WordsOf<D>(), v);
}
// The bits of magnitudes, as signed integers, are ordered like the magnitudes, and NaN comes last.
HWY_INLINE IntVector magnitude_bits(FloatVector v) {
  return hn::BitCast(Ints(), hn::And(bits_of(Floats(), v), word(Floats(), 0x7FFFFFFF)));
}
template <class D>
HWY_INLINE hn::Mask<WordsOf<D>> less(D, WordVector<D> magnitude, int32_t bound) {
  const hn::RebindToSigned<D> ints;
  return hn::RebindMask(WordsOf<D>(), hn::Lt(hn::BitCast(ints, magnitude), hn::Set(ints, bound)));
}

template <class D>
HWY_INLINE WordVector<D> load_halves(D, const uint16_t* from) {
  return hn::PromoteTo(WordsOf<D>(), hn::LoadU(hn::Rebind<uint16_t, D>(), from));
}
template <class D>
HWY_INLINE void store_halves(D, WordVector<D> values, uint16_t* to) {  // values < 65536
  const hn::Rebind<uint16_t, D> halves;
  hn::StoreU(hn::DemoteTo(halves, hn::BitCast(hn::RebindToSigned<D>(), values)), halves, to);
}

template <class D>
HWY_INLINE hn::Vec<D> load_bfloat16(D d, const uint16_t* from) {
  return hn::BitCast(d, hn::ShiftLeft<16>(load_halves(d, from)));
}

// What a tie needs so that it goes to the even one; `ties` is 1.
template <class D>
HWY_INLINE WordVector<D> last_kept(D d, hn::Vec<D> v, WordVector<D> ties) {
  return hn::And(hn::ShiftRight<16>(bits_of(d, v)), ties);
}

// The upper half of each word is the bfloat16.
template <class D>
HWY_INLINE WordVector<D> round_up_by(D d, hn::Vec<D> v, WordVector<D> added) {
  const WordVector<D> bits = bits_of(d, v);
  const auto is_nan = hn::RebindMask(WordsOf<D>(), hn::IsNaN(v));  // Ne(v, v) is false for NaN
  return hn::IfThenElse(is_nan, hn::Or(bits, word(d, 0x00400000)), hn::Add(bits, added));
}

template <class D>
HWY_INLINE void store_bfloat16(D d, hn::Vec<D> v, uint16_t* to) {
  const WordVector<D> added = hn::Add(last_kept(d, v, word(d, 1)), word(d, 0x7FFF));
  store_halves(d, hn::ShiftRight<16>(round_up_by(d, v, added)), to);
}

template <class D>
HWY_INLINE hn::Vec<D> load_float16(D d, const uint16_t* from) {
  const WordVector<D> half = load_halves(d, from);
  const WordVector<D> magnitude = hn::And(half, word(d, 0x7FFF));
  const WordVector<D> shifted = hn::ShiftLeft<13>(magnitude);
  // The exponent's bias is 15 there and 127 here. An exponent of all ones stays one.
  const WordVector<D> normal = hn::Add(shifted, word(d, 112u << 23));
  const WordVector<D> not_finite = hn::Or(shifted, word(d, 0x7F800000));
  // A denormal is what its mantissa adds to the smallest normal number.
  const WordVector<D> smallest = word(d, 113u << 23);
  const WordVector<D> denormal =
      bits_of(d, hn::Sub(hn::BitCast(d, hn::Add(shifted, smallest)), hn::BitCast(d, smallest)));
  const WordVector<D> value =
      hn::IfThenElse(less(d, magnitude, 0x400), denormal,
                     hn::IfThenElse(less(d, magnitude, 0x7C00), normal, not_finite));
  return hn::BitCast(d, hn::Or(value, hn::ShiftLeft<16>(hn::Xor(half, magnitude))));
}

template <class D>
HWY_INLINE void store_float16(D d, hn::Vec<D> v, uint16_t* to) {
  const WordVector<D> magnitude = hn::And(bits_of(d, v), word(d, 0x7FFFFFFF));
  const WordVector<D> sign = hn::ShiftRight<16>(hn::Xor(bits_of(d, v), magnitude));
  const WordVector<D> last_kept = hn::And(hn::ShiftRight<13>(magnitude), word(d, 1));
  // The bias changes by subtraction, and a carry of the rounding may go on to infinity.
  const WordVector<D> normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, word(d, 0xFFFu - (112u << 23))), last_kept));
  // The last place of 0.5 is that of a denormal, so the addition rounds there.
  const WordVector<D> half = word(d, 0x3F000000);
  const WordVector<D> denormal =
      hn::Sub(bits_of(d, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
  const WordVector<D> not_finite =
      hn::IfThenElse(less(d, magnitude, 0x7F800001), word(d, 0x7C00), word(d, 0x7E00));
  const WordVector<D> value =
      hn::IfThenElse(less(d, magnitude, 0x38800000), denormal,
                     hn::IfThenElse(less(d, magnitude, 0x47800000), normal, not_finite));
  store_halves(d, hn::Or(value, sign), to);
}

template <Element kType, class D>
HWY_INLINE hn::Vec<D> load(D d, const void* from, size_t i) {
  if constexpr (kType == Element::float32) {
    return hn::LoadU(d, static_cast<const float*>(from) + i);
  } else if constexpr (kType == Element::bfloat16) {
    return load_bfloat16(d, static_cast<const uint16_t*>(from) + i);
  } else {
    return load_float16(d, static_cast<const uint16_t*>(from) + i);
  }
}

template <Element kType, class D>
HWY_INLINE void store(D d, hn::Vec<D> v, void* to, size_t i) {
  if constexpr (kType == Element::float32) {
    hn::StoreU(v, d, static_cast<float*>(to) + i);
  } else if constexpr (kType == Element::bfloat16) {
    store_bfloat16(d, v, static_cast<uint16_t*>(to) + i);
  } else {
    store_float16(d, v, static_cast<uint16_t*>(to) + i);
  }
}

// Two vectors of consecutive elements.
struct Pair {
  FloatVector a, b;
};

// Which elements `a` and `b` have: the first and the second half, or every other one. Kernels do not care, as long as it is
// the same for all arrays. Elements of 16 bits are taken apart and put together without a shuffle if they alternate: that
// is what makes the kernels for bfloat16 faster than memory.
enum class Order { halves, alternating };

// Without SIMD, a load of two 16-bit numbers at once must be aligned. AVX-512 shuffles any halves of two vectors at once.
inline constexpr Order kBestOrder =
    HWY_TARGET == HWY_SCALAR || HWY_TARGET <= HWY_AVX3 ? Order::halves : Order::alternating;

HWY_INLINE size_t pair_lanes() { return 2 * hn::Lanes(Floats()); }

// Vectors of two blocks of 128 bits: most shuffles stay within a block, and those that do not are slow.
inline constexpr bool kTwoBlocks = hn::MaxLanes(Floats()) == 8;

// Four consecutive bfloat16 of each block, the first four in the lower block, moved to upper halves; other bytes are zero.
alignas(32) inline constexpr uint8_t kSpread[32] = {
    255, 255, 0, 1, 255, 255, 2,  3,  255, 255, 4,  5,  255, 255, 6,  7,
    255, 255, 8, 9, 255, 255, 10, 11, 255, 255, 12, 13, 255, 255, 14, 15};

// What load_bfloat16 gives.
HWY_INLINE FloatVector spread_bfloat16(const uint16_t* from) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kTwoBlocks) {
    const hn::Repartition<uint8_t, Floats> bytes;
    const auto twice = hn::LoadDup128(bytes, reinterpret_cast<const uint8_t*>(from));
    return hn::BitCast(Floats(), hn::TableLookupBytesOr0(twice, hn::Load(bytes, kSpread)));
  }
#endif
  return load_bfloat16(Floats(), from);
}

#if HWY_TARGET <= HWY_AVX3
// Where the halves of the words of `a` are; those of `b` are 16 farther. Lower halves become zero.
alignas(64) inline constexpr uint16_t kSpreadHalves[32] = {0, 0,  0, 1,  0, 2,  0, 3,  0, 4, 0,
                                                           5, 0,  6, 0,  7, 0,  8, 0,  9, 0, 10,
                                                           0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
#endif

template <Order kOrder>
HWY_INLINE Pair load_bfloat16_pair(const uint16_t* from) {
  const Floats d;
  if constexpr (kOrder == Order::halves) {
#if HWY_TARGET <= HWY_AVX3  // one shuffle each; Highway has none for halves
    const hn::Repartition<uint16_t, Floats> halves;
    const auto both = hn::LoadU(halves, from), first = hn::Load(halves, kSpreadHalves);
    const auto second = hn::Add(first, hn::Set(halves, 16));
    constexpr __mmask32 kUpper = 0xAAAAAAAA;
    const decltype(first) a{_mm512_maskz_permutexvar_epi16(kUpper, first.raw, both.raw)};
    const decltype(first) b{_mm512_maskz_permutexvar_epi16(kUpper, second.raw, both.raw)};
    return {hn::BitCast(d, a), hn::BitCast(d, b)};
#endif
    return {spread_bfloat16(from), spread_bfloat16(from + hn::Lanes(d))};
  } else {
    const auto both = hn::LoadU(WordsOf<Floats>(), reinterpret_cast<const uint32_t*>(from));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, word(d, 0xFFFF0000)))};
  }
}

alignas(32) inline constexpr int32_t kTwoInOrder[8] = {0, 1, 4, 5, 2, 3, 6, 7};

// The upper halves of words.
HWY_INLINE void store_upper_halves(WordVector<Floats> a, WordVector<Floats> b, uint16_t* to) {
#if HWY_TARGET == HWY_SCALAR
  store_halves(Floats(), hn::ShiftRight<16>(a), to);
  store_halves(Floats(), hn::ShiftRight<16>(b), to + 1);
#elif HWY_TARGET <= HWY_AVX3
  const hn::Repartition<uint16_t, Floats> halves;
  hn::StoreU(hn::ConcatOdd(halves, hn::BitCast(halves, b), hn::BitCast(halves, a)), halves, to);
#else
  const hn::Repartition<int16_t, Floats> halves;
  const auto upper_a = hn::ShiftRight<16>(hn::BitCast(Ints(), a));
  const auto upper_b = hn::ShiftRight<16>(hn::BitCast(Ints(), b));
  auto both = hn::ReorderDemote2To(halves, upper_a, upper_b);
  if constexpr (kTwoBlocks) {  // each has four of a and four of b
    const auto order = hn::SetTableIndices(Ints(), kTwoInOrder);
    both = hn::BitCast(halves, hn::TableLookupLanes(hn::BitCast(Ints(), both), order));
  }
  hn::StoreU(both, halves, reinterpret_cast<int16_t*>(to));
#endif
}

template <Order kOrder>
HWY_INLINE void store_rounded(WordVector<Floats> a, WordVector<Floats> b, uint16_t* to) {
  if constexpr (kOrder == Order::halves) {
    store_upper_halves(a, b, to);
  } else {
    const auto both = hn::Or(hn::ShiftRight<16>(a), hn::And(b, word(Floats(), 0xFFFF0000)));
    hn::StoreU(both, WordsOf<Floats>(), reinterpret_cast<uint32_t*>(to));
  }
}

// Whether a NaN may have any bits. Otherwise it is the processor's or that of a bfloat16: its lower half is zero, and what
// rounds up does not carry. It is rare, so that what it needs is left out where it does not occur.
enum class Nan : bool { rounded, any };

HWY_INLINE WordVector<Floats> round_up(FloatVector v, WordVector<Floats> added, Nan nan) {
  const Floats d;
  if (HWY_UNLIKELY(nan == Nan::any)) return round_up_by(d, v, added);
  return hn::Add(bits_of(d, v), added);
}

#if HWY_TARGET <= HWY_AVX3
// Rounds both vectors at once, upper halves beside lower ones: the even one of two neighbours is kept by a lower half of
// at most 0x8000, the odd one by one below it.
HWY_INLINE void store_nearest(Pair v, uint16_t* to) {
  const hn::Repartition<uint16_t, Floats> halves;
  const auto a = hn::BitCast(halves, v.a), b = hn::BitCast(halves, v.b);
  const auto upper = hn::ConcatOdd(halves, b, a), lower = hn::ConcatEven(halves, b, a);
  const auto one = hn::Set(halves, 1);
  const auto least = hn::Xor(hn::And(upper, one), hn::Set(halves, 0x8001));
  const __mmask32 up = _mm512_cmpge_epu16_mask(lower.raw, least.raw);
  const decltype(one) rounded{_mm512_mask_add_epi16(upper.raw, up, upper.raw, one.raw)};
  hn::StoreU(rounded, halves, to);
}
#endif

template <Order kOrder>
HWY_INLINE void store_bfloat16_pair(Pair v, Nan nan, uint16_t* to) {
  const Floats d;
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kOrder == Order::halves) {
    if (HWY_LIKELY(nan == Nan::rounded)) return store_nearest(v, to);
  }
#endif
  const auto half = word(d, 0x7FFF), ties = word(d, 1);
  const auto a = hn::Add(last_kept(d, v.a, ties), half), b = hn::Add(last_kept(d, v.b, ties), half);
  store_rounded<kOrder>(round_up(v.a, a, nan), round_up(v.b, b, nan), to);
}

// `noise` has been put in order.
template <Order kOrder>
HWY_INLINE void store_bfloat16_pair(Pair v, Nan nan, const uint32_t* noise, uint16_t* to) {
  const WordsOf<Floats> words;
  const auto a = hn::LoadU(words, noise), b = hn::LoadU(words, noise + hn::Lanes(words));
  store_rounded<kOrder>(round_up(v.a, a, nan), round_up(v.b, b, nan), to);
}

// Where the i-th element of an array is if pairs lie one after the other as they are.
template <Order kOrder>
HWY_INLINE size_t place_in_pairs(size_t i) {
  const size_t lanes = hn::Lanes(Floats()), in_pair = i % (2 * lanes);
  return kOrder == Order::halves ? i : i - in_pair + in_pair % 2 * lanes + in_pair / 2;
}

template <Element kType, Order kOrder>
HWY_INLINE Pair load_pair(const void* from, size_t i) {
  if constexpr (kType == Element::bfloat16) {
    return load_bfloat16_pair<kOrder>(static_cast<const uint16_t*>(from) + i);
  } else {
    static_assert(kOrder == Order::halves);
    const Floats d;
    return {load<kType>(d, from, i), load<kType>(d, from, i + hn::Lanes(d))};
  }
}

template <Element kType, Order kOrder>
HWY_INLINE void store_pair(Pair v, Nan nan, void* to, size_t i) {
  if constexpr (kType == Element::bfloat16) {
    store_bfloat16_pair<kOrder>(v, nan, static_cast<uint16_t*>(to) + i);
  } else {
    static_assert(kOrder == Order::halves);
    const Floats d;
    store<kType>(d, v.a, to, i);
    store<kType>(d, v.b, to, i + hn::Lanes(d));
  }
}

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
