#include "score/capture_bounds.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "score/interval_real.h"
#include "support/half.h"

namespace flashlift::score {
namespace {

template <typename T>
struct Extremes {
  T lo;
  T hi;
};

// Contiguous memory has a loop of its own, which the compiler vectorises.
template <typename T, typename Key>
Extremes<T> extremes(const void* data, int64_t offset, int64_t stride, int64_t count, Key key) {
  using Raw = std::remove_cvref_t<decltype(key.raw)>;
  const Raw* from = static_cast<const Raw*>(data) + offset;
  Extremes<T> result{key(from[0]), key(from[0])};
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) {
      const T value = key(from[i]);
      result.lo = value < result.lo ? value : result.lo;
      result.hi = value > result.hi ? value : result.hi;
    }
    return result;
  }
  for (int64_t i = 0; i < count; ++i) {
    const T value = key(from[i * stride]);
    result.lo = std::min(result.lo, value);
    result.hi = std::max(result.hi, value);
  }
  return result;
}

template <typename Raw>
struct IntegerKey {
  Raw raw{};
  Raw operator()(Raw value) const { return value; }
};

template <typename Raw>
Interval integer_hull(const void* data, int64_t offset, int64_t stride, int64_t count) {
  const auto [lo, hi] = extremes<Raw>(data, offset, stride, count, IntegerKey<Raw>{});
  return Interval::integer(static_cast<int64_t>(lo), static_cast<int64_t>(hi));
}

// Maps floats to integers of the same order: negative values have the bits below the sign flipped. Minimum and maximum
// of integers vectorise; those of floats do not, because of NaN. NaN maps to values beyond both infinities.
template <typename Raw>
struct FloatKey {
  Raw raw{};
  Raw operator()(Raw bits) const {
    constexpr Raw kBelowSign = std::numeric_limits<Raw>::max();
    return static_cast<Raw>(bits ^ ((bits >> (8 * sizeof(Raw) - 1)) & kBelowSign));
  }
};

template <typename Raw, typename ToReal>
Interval real_hull(const void* data, int64_t offset, int64_t stride, int64_t count, ToReal to_real) {
  const FloatKey<Raw> key;
  const auto [lo, hi] = extremes<Raw>(data, offset, stride, count, key);
  const double least = to_real(key(lo));  // the key is its own inverse
  const double most = to_real(key(hi));
  if (!std::isnan(least) && !std::isnan(most)) {
    return hull(Type::kF32, real_value(least), real_value(most));
  }
  Interval result = Interval::only_nan();
  const Raw* from = static_cast<const Raw*>(data) + offset;
  for (int64_t i = 0; i < count; ++i) {
    result = hull(Type::kF32, result, real_value(to_real(from[i * stride])));
  }
  return result;
}

double f16_value(int16_t bits) { return f16_to_float(static_cast<uint16_t>(bits)); }
double bf16_value(int16_t bits) { return bf16_to_float(static_cast<uint16_t>(bits)); }
double f32_value(int32_t bits) { return std::bit_cast<float>(bits); }
double f64_value(int64_t bits) { return static_cast<float>(std::bit_cast<double>(bits)); }

// Whether `count` elements, `stride` apart, are equal to the first. Compares in steps, short enough to stop early and
// long enough to vectorise.
template <typename Raw>
bool line_equals(const void* data, int64_t offset, int64_t stride, int64_t count, int64_t first_offset) {
  constexpr int64_t kStep = 64;
  const Raw* base = static_cast<const Raw*>(data);
  const Raw* from = base + offset;
  const Raw first = base[first_offset];
  for (int64_t begin = 0; begin < count; begin += kStep) {
    const int64_t end = std::min(begin + kStep, count);
    bool same = true;
    if (stride == 1) {
      for (int64_t i = begin; i < end; ++i) {
        same &= from[i] == first;
      }
    } else {
      for (int64_t i = begin; i < end; ++i) {
        same &= from[i * stride] == first;
      }
    }
    if (!same) {
      return false;
    }
  }
  return true;
}

// Compares elements as integers of the same width. A bool that is neither 0 nor 1 counts as different, which only makes
// the bounds wider.
bool line_is_uniform(const TensorView& tensor, int64_t offset, int64_t stride, int64_t count, int64_t first_offset) {
  switch (size_in_bytes(tensor.dtype)) {
    case 1:
      return line_equals<uint8_t>(tensor.data, offset, stride, count, first_offset);
    case 2:
      return line_equals<uint16_t>(tensor.data, offset, stride, count, first_offset);
    case 4:
      return line_equals<uint32_t>(tensor.data, offset, stride, count, first_offset);
    default:
      return line_equals<uint64_t>(tensor.data, offset, stride, count, first_offset);
  }
}

// Calls body(indices) for every index of the box [lo, hi], until it returns false.
template <typename Body>
bool for_each_index(std::span<const int64_t> lo, std::span<const int64_t> hi, Body body) {
  std::array<int64_t, kMaxRank> at{};
  std::copy(lo.begin(), lo.end(), at.begin());
  while (true) {
    if (!body(std::span<const int64_t>(at.data(), lo.size()))) {
      return false;
    }
    size_t i = lo.size();
    while (i-- > 0) {
      if (++at[i] <= hi[i]) {
        break;
      }
      at[i] = lo[i];
    }
    if (i == static_cast<size_t>(-1)) {
      return true;
    }
  }
}

int64_t offset_of(const TensorView& tensor, std::span<const int64_t> indices) {
  int64_t offset = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    offset += indices[i] * tensor.strides[i];
  }
  return offset;
}

}  // namespace

Interval dtype_range(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return Interval::integer(0, 1);
    case DType::kI8:
      return Interval::integer(-128, 127);
    case DType::kU8:
      return Interval::integer(0, 255);
    case DType::kI16:
      return Interval::integer(-32768, 32767);
    case DType::kU32:
      return Interval::integer(0, std::numeric_limits<uint32_t>::max());
    case DType::kI32:
    case DType::kI64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      break;
  }
  return Interval::everything(scalar_type(dtype));
}

Interval hull_of_elements(const TensorView& tensor, int64_t offset, int64_t stride, int64_t count) {
  const void* data = tensor.data;
  switch (tensor.dtype) {
    case DType::kBool: {
      const Interval bytes = integer_hull<uint8_t>(data, offset, stride, count);
      return Interval::integer(bytes.lo != 0, bytes.hi != 0);
    }
    case DType::kI8:
      return integer_hull<int8_t>(data, offset, stride, count);
    case DType::kU8:
      return integer_hull<uint8_t>(data, offset, stride, count);
    case DType::kI16:
      return integer_hull<int16_t>(data, offset, stride, count);
    case DType::kI32:
      return integer_hull<int32_t>(data, offset, stride, count);
    case DType::kU32:
      return integer_hull<uint32_t>(data, offset, stride, count);
    case DType::kI64:
      return integer_hull<int64_t>(data, offset, stride, count);
    case DType::kF16:
      return real_hull<int16_t>(data, offset, stride, count, f16_value);
    case DType::kBF16:
      return real_hull<int16_t>(data, offset, stride, count, bf16_value);
    case DType::kF32:
      return real_hull<int32_t>(data, offset, stride, count, f32_value);
    case DType::kF64:
      return real_hull<int64_t>(data, offset, stride, count, f64_value);
  }
  return dtype_range(tensor.dtype);
}

bool is_uniform(const TensorView& tensor, std::span<const int64_t> lo, std::span<const int64_t> hi) {
  if (lo.empty()) {
    return true;
  }
  const size_t last = lo.size() - 1;
  const int64_t first = offset_of(tensor, lo);
  const int64_t count = hi[last] - lo[last] + 1;
  std::array<int64_t, kMaxRank> line_hi{};
  std::copy(hi.begin(), hi.end(), line_hi.begin());
  line_hi[last] = lo[last];
  return for_each_index(lo, {line_hi.data(), hi.size()}, [&](std::span<const int64_t> at) {
    return line_is_uniform(tensor, offset_of(tensor, at), tensor.strides[last], count, first);
  });
}

void LineBounds::build(const TensorView& tensor, int dimension) {
  tensor_ = tensor;
  dimension_ = dimension;
  type_ = scalar_type(tensor.dtype);
  size_ = tensor.sizes[dimension];
  blocks_ = (size_ + kBlock - 1) / kBlock;
  line_strides_ = {};
  std::array<int64_t, kMaxRank> lo{};
  std::array<int64_t, kMaxRank> hi{};
  int64_t lines = 1;
  for (int i = tensor.rank; i-- > 0;) {
    if (i != dimension && tensor.strides[i] != 0) {
      line_strides_[i] = lines;
      lines *= tensor.sizes[i];
      hi[i] = tensor.sizes[i] - 1;
    }
  }
  trees_.resize(lines * 2 * blocks_);
  const auto rank = static_cast<size_t>(tensor.rank);
  bool is_first = true;
  for_each_index({lo.data(), rank}, {hi.data(), rank}, [&](std::span<const int64_t> at) {
    int64_t line = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      line += at[i] * line_strides_[i];
    }
    build_line(line, offset_of(tensor_, at));
    const Interval root = range(at, 0, size_ - 1);
    whole_ = is_first ? root : join(whole_, root);
    is_first = false;
    return true;
  });
}

void LineBounds::build_line(int64_t line, int64_t offset) {
  Interval* tree = trees_.data() + line * 2 * blocks_;
  const int64_t stride = tensor_.strides[dimension_];
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t begin = block * kBlock;
    const int64_t count = std::min(kBlock, size_ - begin);
    tree[blocks_ + block] = hull_of_elements(tensor_, offset + begin * stride, stride, count);
  }
  for (int64_t i = blocks_ - 1; i > 0; --i) {
    tree[i] = join(tree[2 * i], tree[2 * i + 1]);
  }
}

Interval LineBounds::range(std::span<const int64_t> indices, int64_t lo, int64_t hi) const {
  int64_t line = 0;
  int64_t offset = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (static_cast<int>(i) != dimension_) {
      line += indices[i] * line_strides_[i];
      offset += indices[i] * tensor_.strides[i];
    }
  }
  const int64_t stride = tensor_.strides[dimension_];
  const auto elements = [&](int64_t begin, int64_t end) {
    return hull_of_elements(tensor_, offset + begin * stride, stride, end - begin);
  };
  // Whole blocks are read from the tree, the rest at both ends from the elements.
  const int64_t end = hi + 1;
  const int64_t first_block = (lo + kBlock - 1) / kBlock;
  const int64_t last_block = end == size_ ? blocks_ : end / kBlock;
  if (first_block >= last_block) {
    return elements(lo, end);
  }
  const Interval* tree = trees_.data() + line * 2 * blocks_;
  Interval result = tree[blocks_ + first_block];
  for (int64_t left = first_block + blocks_, right = last_block + blocks_; left < right; left /= 2, right /= 2) {
    if (left % 2 != 0) {
      result = join(result, tree[left++]);
    }
    if (right % 2 != 0) {
      result = join(result, tree[--right]);
    }
  }
  if (lo < first_block * kBlock) {
    result = join(result, elements(lo, first_block * kBlock));
  }
  if (end > last_block * kBlock) {
    result = join(result, elements(last_block * kBlock, end));
  }
  return result;
}

}  // namespace flashlift::score
