// Minima and maxima of captured tensors, which bound loads in interval analysis.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "flashlift/tensor.h"
#include "score/interval.h"

namespace flashlift::score {

// The range of all values that a load of this dtype may return.
Interval dtype_range(DType dtype);

// The hull of `count` elements, the first at element offset `offset`, `stride` apart. count > 0.
Interval hull_of_elements(const TensorView& tensor, int64_t offset, int64_t stride, int64_t count);

// Whether all elements of the box [lo, hi] (bounds included, within the sizes) are equal. Stops at the first different
// element, so that a negative answer costs little.
bool is_uniform(const TensorView& tensor, std::span<const int64_t> lo, std::span<const int64_t> hi);

// Bounds of any range along one dimension of a tensor, for every index of the other dimensions. Built in one pass over
// the elements. A query takes logarithmic time, and its result is exact.
class LineBounds {
 public:
  LineBounds() = default;
  LineBounds(const TensorView& tensor, int dimension) { build(tensor, dimension); }
  // `tensor`'s memory must outlive this object. No dimension may be empty. May be called again for another tensor, and
  // reuses memory.
  void build(const TensorView& tensor, int dimension);

  int dimension() const { return dimension_; }
  bool is_of(const TensorView& tensor, int dimension) const {
    return dimension == dimension_ && tensor.data == tensor_.data && tensor.dtype == tensor_.dtype &&
           tensor.rank == tensor_.rank && tensor.sizes == tensor_.sizes && tensor.strides == tensor_.strides;
  }
  // Elements lo to hi, both included, of the line at these indices (the one of `dimension` is ignored).
  Interval range(std::span<const int64_t> indices, int64_t lo, int64_t hi) const;
  // The hull of all elements.
  Interval whole() const { return whole_; }

 private:
  static constexpr int64_t kBlock = 32;

  Interval join(const Interval& x, const Interval& y) const { return hull(type_, x, y); }
  void build_line(int64_t line, int64_t offset);

  TensorView tensor_;
  int dimension_ = 0;
  Type type_ = Type::kI32;
  int64_t size_ = 0;
  int64_t blocks_ = 0;
  std::array<int64_t, kMaxRank> line_strides_{};  // zero for broadcast dimensions, which share one line
  // For each line a bottom-up segment tree over its blocks: the leaves at [blocks, 2 blocks), the root at 1.
  std::vector<Interval> trees_;
  Interval whole_;
};

}  // namespace flashlift::score
