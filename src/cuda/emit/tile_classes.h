// The class of lengths whose tiles a call uses.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/emit/length_class.h"
#include "flashlift/problem.h"

namespace flashlift::cuda {

// If nothing is masked, all query tiles take the same time, and the multiprocessors process them in rounds. With few
// heads, the last round of large tiles may be nearly empty. Such a call uses the smaller tiles of another class. (Under
// a mask tiles differ, and short ones fill the gaps.) Only Hopper's kernels have tiles by class.
class TileClasses {
 public:
  explicit TileClasses(const Problem& problem);

  // For a call with these sizes on a device with so many multiprocessors, if it has not few rows.
  LengthClass of(int64_t batch, int64_t q_len, int multiprocessors) const;

  // All that calls with this length may use, by batch and device. The first one is length_class(q_len).
  std::vector<LengthClass> candidates(int64_t q_len) const;

 private:
  int64_t rows(LengthClass length) const { return query_tiles_[static_cast<size_t>(length)]; }
  bool replaces(LengthClass other, LengthClass own) const {
    return other < own && rows(other) != 0 && rows(own) != 0 && rows(other) != rows(own);
  }

  Problem problem_;
  std::array<int64_t, kLengthClasses> query_tiles_ = {};  // rows of a query tile. 0: none to choose from
};

}  // namespace flashlift::cuda
