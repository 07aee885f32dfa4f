// Minima and maxima of captured tensors: what interval analysis knows of a load.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "flashlift/tensor.h"
#include "score/interval.h"

namespace flashlift::score {

// Every value that a load of this dtype may give.
Interval dtype_range(DType dtype);

// The hull of `count` elements, the first at element offset `offset`, `stride` apart. count > 0.
Interval hull_of_elements(const TensorView& tensor, int64_t offset, int64_t stride, int64_t count);

// True if all elements of the box [lo, hi] (both included, within the sizes) are the same. Stops at the first that
// differs, so that it costs little where the answer is no.
bool is_uniform(const TensorView& tensor, std::span<const int64_t> lo, std::span<const int64_t> hi);

// Bounds of any range along one dimension of a tensor, for every index of the other dimensions. Built in one pass over
// the elements; a range takes logarithmic time and is exact.
class LineBounds {
 public:
  LineBounds() = default;
  LineBounds(const TensorView& tensor, int dimension) { build(tensor, dimension); }
  // `tensor`'s memory must outlive the object's use. No dimension may be empty. Again for another tensor: its memory is
  // reused.
  void build(const TensorView& tensor, int dimension);

  int dimension() const { return dimension_; }
  bool is_of(const TensorView& tensor, int dimension) const {
    return dimension == dimension_ && tensor.data == tensor_.data && tensor.dtype == tensor_.dtype &&
           tensor.rank == tensor_.rank && tensor.sizes == tensor_.sizes && tensor.strides == tensor_.strides;
  }
  // Elements lo to hi, both included, of the line at these indices (the one of `dimension` is ignored).
  Interval range(std::span<const int64_t> indices, int64_t lo, int64_t hi) const;
  // All elements of all lines.
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
  std::array<int64_t, kMaxRank> line_strides_{};  // zero for broadcast dimensions: their lines are one
  // For each line a bottom-up segment tree over its blocks: the leaves at [blocks, 2 blocks), the root at 1.
  std::vector<Interval> trees_;
  Interval whole_;
};

}  // namespace flashlift::score
