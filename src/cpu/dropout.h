// Dropout on a CPU: which probabilities stay. docs/problem.md defines it.
#pragma once

#include <cmath>

#include "cpu/tile/kernels.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

inline Dropout dropout_of(const Problem& problem, uint64_t seed) {
  const double rate = problem.dropout;
  return {.threshold = static_cast<uint32_t>(std::llround(std::ldexp(rate, 32))),
          .factor = static_cast<float>(1.0 / (1.0 - rate)),
          .seed = seed};
}

// One key at a time, for rows too rare to be worth vectors.
bool keeps(const Dropout& dropout, const DropoutRow& row, int64_t kv);

}  // namespace flashlift::cpu
