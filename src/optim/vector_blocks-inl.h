// The codes of quantised.h for a vector of elements and for a block. Included once per SIMD target; see kernels.cc.
#if defined(BOTTOMLESS_OPTIM_VECTOR_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BOTTOMLESS_OPTIM_VECTOR_BLOCKS_INL_H
#undef BOTTOMLESS_OPTIM_VECTOR_BLOCKS_INL_H
#else
#define BOTTOMLESS_OPTIM_VECTOR_BLOCKS_INL_H
#endif

#include <hwy/highway.h>

#include <limits>

#include "optim/quantised.h"
#include "optim/vector_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

// The nearest integer, ties to even, of |v| < 2^22, in the lower bits: the addition leaves none below the point.
HWY_INLINE IntVector nearest(FloatVector v) {
  return hn::BitCast(Ints(), hn::Add(v, hn::Set(Floats(), 12582912.0f)));  // 1.5 * 2^23
}

// How a moment is coded. Only the lowest byte of what encode() returns is the code; `offset` is that of quantised.h. encode_one()
// is for blocks whose scale is infinite.
struct FirstCoding {
  using Code = int8_t;
  static constexpr Moment kMoment = Moment::first;
  static constexpr CodeBook kBook = kFirstCodes;

  static HWY_INLINE IntVector lower_byte(IntVector v) {
    return hn::ShiftRight<24>(hn::ShiftLeft<24>(v));
  }
  static HWY_INLINE IntVector upper_byte(IntVector v) {
    return hn::ShiftRight<24>(hn::ShiftLeft<16>(v));
  }
  static HWY_INLINE FloatVector decode(IntVector code, float root_unit) {
    const FloatVector root = hn::Mul(hn::ConvertTo(Floats(), code), hn::Set(Floats(), root_unit));
    const IntVector shifted = hn::ShiftLeft<kBook.shift>(hn::BitCast(Ints(), root));
    return hn::CopySign(hn::BitCast(Floats(), shifted), root);
  }

  static Code encode_one(float value, float scale) { return encode_first(value, scale); }
  static HWY_INLINE IntVector encode(FloatVector value, float code_factor, FloatVector offset) {
    const FloatVector root =
        hn::BitCast(Floats(), hn::ShiftRight<kBook.shift>(magnitude_bits(value)));
    const FloatVector code = hn::Add(hn::Mul(root, hn::Set(Floats(), code_factor)), offset);
    return nearest(hn::Xor(code, hn::And(value, hn::SignBit(Floats()))));
  }
};

struct SecondCoding {
  using Code = uint8_t;
  static constexpr Moment kMoment = Moment::second;
  static constexpr CodeBook kBook = kSecondCodes;

  static HWY_INLINE IntVector lower_byte(IntVector v) { return hn::And(v, hn::Set(Ints(), 0xFF)); }
  static HWY_INLINE IntVector upper_byte(IntVector v) { return hn::ShiftRight<8>(v); }
  static HWY_INLINE FloatVector decode(IntVector code, float root_unit) {
    const FloatVector root = hn::Mul(hn::ConvertTo(Floats(), code), hn::Set(Floats(), root_unit));
    return hn::BitCast(Floats(), hn::ShiftLeft<kBook.shift>(hn::BitCast(Ints(), root)));
  }

  static Code encode_one(float value, float scale) { return encode_second(value, scale); }
  static HWY_INLINE IntVector encode(FloatVector value, float code_factor, FloatVector offset) {
    const IntVector bits = hn::BitCast(Ints(), value);
    const FloatVector root = hn::BitCast(Floats(), hn::ShiftRight<kBook.shift>(bits));
    const FloatVector exact = hn::Mul(root, hn::Set(Floats(), code_factor));
    const IntVector code = nearest(hn::Add(exact, offset));
    // The bits of what is not zero are at least 1.
    const IntVector smallest = hn::Min(bits, hn::Set(Ints(), 1));
    return hn::Max(code, hn::Add(nearest(hn::Zero(Floats())), smallest));
  }
};

template <class Coding, Order kOrder>
HWY_INLINE Pair decode_pair(const typename Coding::Code* codes, float root_unit) {
  if constexpr (kOrder == Order::halves) {
    const hn::Rebind<typename Coding::Code, Floats> bytes;
    const auto a = hn::LoadU(bytes, codes), b = hn::LoadU(bytes, codes + hn::Lanes(bytes));
    return {Coding::decode(hn::PromoteTo(Ints(), a), root_unit),
            Coding::decode(hn::PromoteTo(Ints(), b), root_unit)};
  } else {
    const hn::Rebind<uint16_t, Floats> halves;
    const IntVector both =
        hn::PromoteTo(Ints(), hn::LoadU(halves, reinterpret_cast<const uint16_t*>(codes)));
    return {Coding::decode(Coding::lower_byte(both), root_unit),
            Coding::decode(Coding::upper_byte(both), root_unit)};
  }
}

alignas(32) inline constexpr uint8_t kEvenBytes[32] = {0,  2,  4,  6,  8,  10, 12, 14, 0,  2, 4,
                                                       6,  8,  10, 12, 14, 0,  2,  4,  6,  8, 10,
                                                       12, 14, 0,  2,  4,  6,  8,  10, 12, 14};
alignas(32) inline constexpr int32_t kFours[8] = {0, 4, 1, 5, 0, 4, 1, 5};

HWY_INLINE void store_bytes(IntVector a, IntVector b, uint8_t* to) {  // 0 to 255
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kTwoBlocks) {
    const hn::Repartition<int16_t, Floats> halves;
    const hn::Repartition<uint8_t, Floats> bytes;
    // Four elements of a and four of b in each block.
    const auto pairs = hn::BitCast(bytes, hn::ReorderDemote2To(halves, a, b));
    const auto codes =
        hn::BitCast(Ints(), hn::TableLookupBytes(pairs, hn::Load(bytes, kEvenBytes)));
    const auto ordered = hn::TableLookupLanes(codes, hn::SetTableIndices(Ints(), kFours));
    hn::StoreU(hn::LowerHalf(hn::BitCast(bytes, ordered)), hn::Half<decltype(bytes)>(), to);
    return;
  }
#endif
  const hn::Rebind<uint8_t, Floats> bytes;
  hn::StoreU(hn::DemoteTo(bytes, a), bytes, to);
  hn::StoreU(hn::DemoteTo(bytes, b), bytes, to + hn::Lanes(bytes));
}

template <Order kOrder>
HWY_INLINE void store_lowest_bytes(IntVector a, IntVector b, void* to) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kOrder == Order::halves) {
    const hn::Rebind<uint8_t, Floats> bytes;
    const WordsOf<Floats> words;
    uint8_t* const codes = static_cast<uint8_t*>(to);
    hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(words, a)), bytes, codes);
    hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(words, b)), bytes, codes + hn::Lanes(words));
    return;
  }
#endif
  const IntVector lower = hn::And(a, hn::Set(Ints(), 0xFF));
  if constexpr (kOrder == Order::halves) {
    store_bytes(lower, hn::And(b, hn::Set(Ints(), 0xFF)), static_cast<uint8_t*>(to));
  } else {
    const hn::Rebind<uint16_t, Floats> halves;
    const IntVector upper = hn::And(hn::ShiftLeft<8>(b), hn::Set(Ints(), 0xFF00));
    hn::StoreU(hn::DemoteTo(halves, hn::Or(lower, upper)), halves, static_cast<uint16_t*>(to));
  }
}

// What is left behind are pairs, in this order.
template <class Coding, Order kOrder>
HWY_NOINLINE void encode_infinite_block(const float* left_behind, size_t count,
                                        typename Coding::Code* codes) {
  for (size_t i = 0; i < count; ++i)
    codes[i] = Coding::encode_one(left_behind[place_in_pairs<kOrder>(i)],
                                  std::numeric_limits<float>::infinity());
}

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
