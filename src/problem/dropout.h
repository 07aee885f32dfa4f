// The probabilities that dropout keeps, for the oracle and the eager maths. See docs/problem.md.
#pragma once

#include <array>
#include <cstdint>

#include "flashlift/problem.h"

namespace flashlift::problem {

// Philox4x32 with 7 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

struct DropoutCounter {
  uint64_t seed = 0;
  std::array<int64_t, 2> origin{};  // of batches and query heads
};
// The counter from the arguments' values, or from dropout_words, which must be in host memory.
DropoutCounter dropout_counter(const AttentionArguments& arguments);

// The factor of this key's probability: 0 or 1 / (1 - dropout); 1 for problems without dropout.
double dropout_factor(const Problem& problem, const AttentionArguments& arguments, int64_t b, int64_t h, int64_t q,
                      int64_t kv);

// The strides of a keep mask along its dimensions: 0 if the size is 1.
std::array<int64_t, 4> keep_mask_strides(const TensorView& mask);

}  // namespace flashlift::problem
