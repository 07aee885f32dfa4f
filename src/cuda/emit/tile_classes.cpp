#include "cuda/emit/tile_classes.h"

#include <algorithm>

#include "cuda/emit/forward_config.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

// All but kFewRows, whose kernels have one kind of tiles.
constexpr LengthClass kLongestFirst[] = {LengthClass::kLonger, LengthClass::kUpTo4096, LengthClass::kUpTo2048,
                                         LengthClass::kUpTo1024};

}  // namespace

TileClasses::TileClasses(const Problem& problem) : problem_(problem) {
  if (problem.mask_mod || (problem.score_mod && may_mask(*problem.score_mod))) {
    return;
  }
  for (const LengthClass length : kLongestFirst) {
    const Result<ForwardConfig> config = choose_hopper_config(problem, length);
    query_tiles_[static_cast<size_t>(length)] = config.ok() ? config->q_tile : 0;
  }
}

std::vector<LengthClass> TileClasses::candidates(int64_t q_len) const {
  const LengthClass own = length_class(q_len);
  std::vector<LengthClass> list = {own};
  for (const LengthClass other : kLongestFirst) {
    const bool is_new = std::ranges::none_of(list, [&](LengthClass one) { return rows(one) == rows(other); });
    if (replaces(other, own) && is_new) {
      list.push_back(other);
    }
  }
  return list;
}

LengthClass TileClasses::of(int64_t batch, int64_t q_len, int multiprocessors) const {
  // How much longer another class's tiles take for as many rows, about (docs/lessons/cuda_forward.md).
  constexpr double kSlower = 1.15;
  const auto time = [&](LengthClass length) {
    const int64_t tiles = batch * problem_.q_heads * divide_up(q_len, rows(length));
    return static_cast<double>(divide_up(tiles, multiprocessors) * rows(length));
  };
  const LengthClass own = length_class(q_len);
  if (rows(own) == 0) {
    return own;
  }
  LengthClass best = own;
  double least = time(own);
  for (const LengthClass other : kLongestFirst) {
    if (replaces(other, own) && kSlower * time(other) < least) {
      best = other;
      least = kSlower * time(other);
    }
  }
  return best;
}

}  // namespace flashlift::cuda
