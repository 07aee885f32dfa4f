#include "cpu/dropout.h"

#include <cmath>

#include "cpu/tile/philox.h"
#include "problem/dropout.h"

namespace flashlift::cpu {

Dropout dropout_of(const Problem& problem, const AttentionArguments& arguments) {
  const double rate = problem.dropout;
  const problem::DropoutCounter counter =
      problem.drops_keys() ? problem::dropout_counter(arguments) : problem::DropoutCounter();
  Dropout dropout{.threshold = static_cast<uint32_t>(std::llround(std::ldexp(rate, 32))),
                  .factor = static_cast<float>(1.0 / (1.0 - rate)),
                  .seed = counter.seed,
                  .origin_b = counter.origin[0],
                  .origin_h = counter.origin[1]};
  if (problem.keep_mask) {
    dropout.keep = static_cast<const uint8_t*>(arguments.keep_mask->data);
    dropout.keep_strides = problem::keep_mask_strides(*arguments.keep_mask);
  }
  return dropout;
}

bool keeps(const Dropout& dropout, const DropoutRow& row, int64_t kv) {
  if (dropout.keep != nullptr) {
    const auto& [b, h, q, key] = dropout.keep_strides;
    return dropout.keep[row.b * b + row.h * h + row.q * q + kv * key] != 0;
  }
  uint32_t words[4] = {static_cast<uint32_t>(kv / 64 * 16 + kv % 16), static_cast<uint32_t>(row.q),
                       static_cast<uint32_t>(dropout.origin_h + row.h),
                       static_cast<uint32_t>(dropout.origin_b + row.b)};
  uint32_t key[2] = {static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32)};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t first = uint64_t{kPhiloxMultipliers[0]} * words[0];
    const uint64_t second = uint64_t{kPhiloxMultipliers[1]} * words[2];
    words[0] = static_cast<uint32_t>(second >> 32) ^ words[1] ^ key[0];
    words[1] = static_cast<uint32_t>(second);
    words[2] = static_cast<uint32_t>(first >> 32) ^ words[3] ^ key[1];
    words[3] = static_cast<uint32_t>(first);
    key[0] += kPhiloxKeySteps[0];
    key[1] += kPhiloxKeySteps[1];
  }
  return words[kv / 16 % 4] >= dropout.threshold;
}

}  // namespace flashlift::cpu
