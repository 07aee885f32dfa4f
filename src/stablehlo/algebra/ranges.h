// The range of a formula's values over the whole score plane.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "score/interval.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

class Ranges {
 public:
  // Cached results; they are valid as long as the atoms keep their sizes and the leaves their numbers.
  struct Known {
    std::map<SymId, score::Interval> ranges;
    std::map<SymId, bool> whole;
  };

  // sizes: of the atoms. of_leaf: the range of the elements of a leaf's tensor.
  Ranges(const SymArena& arena, const std::vector<int64_t>& sizes,
         std::function<score::Interval(int64_t leaf, Type type)> of_leaf, Known& known)
      : arena_(arena), sizes_(sizes), of_leaf_(std::move(of_leaf)), known_(known) {}

  score::Interval of(SymId id);
  // Whether all values of an integer formula are within these bounds, both included.
  bool lies_within(SymId id, int64_t low, int64_t high);
  // Whether all values of an f32 formula are whole numbers of at most this size.
  bool is_whole(SymId id, int64_t at_most);

 private:
  score::Interval compute(SymId id);
  bool gives_whole_numbers(SymId id);

  const SymArena& arena_;
  const std::vector<int64_t>& sizes_;
  std::function<score::Interval(int64_t, Type)> of_leaf_;
  Known& known_;
};

}  // namespace flashlift::stablehlo
