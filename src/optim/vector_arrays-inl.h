// Arrays, chunk by chunk, as the kernels want them: whole vectors, of a format that they know. Included once per SIMD
// target; see kernels.cc.
#if defined(BOTTOMLESS_OPTIM_VECTOR_ARRAYS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BOTTOMLESS_OPTIM_VECTOR_ARRAYS_INL_H
#undef BOTTOMLESS_OPTIM_VECTOR_ARRAYS_INL_H
#else
#define BOTTOMLESS_OPTIM_VECTOR_ARRAYS_INL_H
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "optim/optimizers.h"
#include "optim/quantised.h"
#include "optim/vector_blocks-inl.h"
#include "optim/vector_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

inline constexpr size_t kChunk = 4 * kBlock;  // the most elements of one

// Chunks are padded to a multiple of this: no target has longer pairs.
inline constexpr size_t kPadding = 32;

// Where the elements of a chunk are.
struct Extent {
  size_t start, count;
  size_t padded() const { return (count + kPadding - 1) / kPadding * kPadding; }
  bool needs_padding() const { return count % kPadding != 0; }
};

inline Extent extent_at(size_t start, size_t end, size_t chunk = kChunk) {
  return {start, HWY_MIN(chunk, end - start)};
}

// An array in a format that the kernel knows. A chunk that does not end with a whole pair is copied to where it can be
// padded, with zeros.
class PlainArray {
 public:
  PlainArray(const void* values, size_t element_bytes)
      : values_(static_cast<std::byte*>(const_cast<void*>(values))),
        element_bytes_(element_bytes) {}
  PlainArray(const void* values, Element type) : PlainArray(values, bytes_of(type)) {}

  void* open(Extent extent) {
    if (!extent.needs_padding()) return at(extent);
    const size_t used = extent.count * element_bytes_;
    std::memcpy(padded_, at(extent), used);
    std::memset(padded_ + used, 0, extent.padded() * element_bytes_ - used);
    return padded_;
  }
  void close(Extent extent) {  // only where something was written
    if (extent.needs_padding()) std::memcpy(at(extent), padded_, extent.count * element_bytes_);
  }

 private:
  void* at(Extent extent) const { return values_ + extent.start * element_bytes_; }

  std::byte* const values_;
  const size_t element_bytes_;
  HWY_ALIGN std::byte padded_[kChunk * sizeof(float)];
};

template <Element kType>
HWY_NOINLINE void convert_from(const void* HWY_RESTRICT from, size_t count,
                               float* HWY_RESTRICT to) {
  const Floats d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::Store(load<kType>(d, from, i), d, to + i);
}

template <Element kType>
HWY_NOINLINE void convert_to(const float* HWY_RESTRICT from, size_t count, void* HWY_RESTRICT to) {
  const Floats d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) store<kType>(d, hn::LoadU(d, from + i), to, i);
}

inline void convert_to(Element type, const float* from, size_t count, void* to) {
  if (type == Element::float32) return convert_to<Element::float32>(from, count, to);
  if (type == Element::bfloat16) return convert_to<Element::bfloat16>(from, count, to);
  convert_to<Element::float16>(from, count, to);
}

// An array that the kernel sees as float32, whatever it is.
class ConvertedArray {
 public:
  ConvertedArray(const void* values, Element type) : type_(type), array_(values, type) {}

  float* open(Extent extent) {
    stored_ = array_.open(extent);
    if (type_ == Element::float32) return static_cast<float*>(stored_);
    if (type_ == Element::bfloat16) {
      convert_from<Element::bfloat16>(stored_, extent.padded(), converted_);
    } else {
      convert_from<Element::float16>(stored_, extent.padded(), converted_);
    }
    return converted_;
  }
  void close(Extent extent) {
    if (type_ != Element::float32) convert_to(type_, converted_, extent.padded(), stored_);
    array_.close(extent);
  }

 private:
  const Element type_;
  PlainArray array_;
  void* stored_ = nullptr;
  HWY_ALIGN float converted_[kChunk];
};

// What a kernel knows of a state when it is compiled; `any`: nothing.
enum class StateKind : uint8_t { none, float32, bfloat16, stochastic, quantised, any };

inline StateKind kind_of(const State& state) {
  if (state.format == StateFormat::float32) return StateKind::float32;
  if (state.format == StateFormat::quantised8) return StateKind::quantised;
  return state.rounding == Rounding::nearest ? StateKind::bfloat16 : StateKind::stochastic;
}

// A state's part in a chunk.
struct StateChunk {
  StateKind kind = StateKind::none;
  void* values = nullptr;
  const uint32_t* noise = nullptr;  // stochastic: of a block, in the order of pairs
  // Quantised, for each block:
  float* scales = nullptr;
  const float* offsets = nullptr;  // of codes in any block, in the order of pairs
  const float* units = nullptr;    // of the values before the update
  float* code_factors = nullptr;   // of the codes after it
};

template <class Coding, Order kOrder>
class StateArray {
 public:
  StateArray(const State& state, uint64_t step)
      : kind_(kind_of(state)),
        scales_(state.scales),
        values_(state.values, bytes_of(state.format)) {
    if (kind_ != StateKind::stochastic && kind_ != StateKind::quantised) return;
    for (size_t i = 0; i < kBlock; ++i) {
      const uint16_t noise = rounding_noise(Coding::kMoment, step, i);
      noise_[place_in_pairs<kOrder>(i)] = noise;
      offsets_[place_in_pairs<kOrder>(i)] = code_offset(noise);
    }
  }

  StateChunk open(Extent extent) {
    StateChunk chunk{.kind = kind_, .values = values_.open(extent), .noise = noise_};
    if (kind_ == StateKind::quantised) {
      chunk.offsets = offsets_;
      chunk.scales = scales_ + extent.start / kBlock;
      for (size_t i = 0; i < block_count(extent.count); ++i)
        units_[i] = Coding::kBook.root_unit(chunk.scales[i]);
      chunk.units = units_;
      chunk.code_factors = code_factors_;
    }
    return chunk;
  }

  void close(Extent extent) { values_.close(extent); }

 private:
  const StateKind kind_;
  float* const scales_;
  PlainArray values_;
  float units_[kChunk / kBlock], code_factors_[kChunk / kBlock];
  HWY_ALIGN uint32_t noise_[kBlock];
  HWY_ALIGN float offsets_[kBlock];
};

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
