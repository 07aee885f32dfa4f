#include "problem/dropout.h"

#include <cmath>

namespace flashlift::problem {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 7;
  constexpr uint64_t kMultipliers[2] = {0xd2511f53, 0xcd9e8d57};
  constexpr uint32_t kKeySteps[2] = {0x9e3779b9, 0xbb67ae85};
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = kMultipliers[0] * counter[0];
    const uint64_t second = kMultipliers[1] * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += kKeySteps[0];
    key[1] += kKeySteps[1];
  }
  return counter;
}

std::array<int64_t, 4> keep_mask_strides(const TensorView& mask) {
  std::array<int64_t, 4> strides{};
  for (size_t d = 0; d < strides.size(); ++d) {
    strides[d] = mask.sizes[d] == 1 ? 0 : mask.strides[d];
  }
  return strides;
}

DropoutCounter dropout_counter(const AttentionArguments& arguments) {
  if (!arguments.dropout_words) {
    return {arguments.dropout_seed, arguments.dropout_origin};
  }
  const auto* const words = static_cast<const uint32_t*>(arguments.dropout_words->data);
  DropoutCounter counter{uint64_t{words[1]} << 32 | words[0], {}};
  if (arguments.dropout_words->sizes[0] == 4) {
    counter.origin = {words[2], words[3]};
  }
  return counter;
}

double dropout_factor(const Problem& problem, const AttentionArguments& arguments, int64_t b, int64_t h, int64_t q,
                      int64_t kv) {
  const double factor = 1.0 / (1.0 - static_cast<double>(problem.dropout));
  if (problem.keep_mask) {
    const std::array<int64_t, 4> strides = keep_mask_strides(*arguments.keep_mask);
    const int64_t offset = b * strides[0] + h * strides[1] + q * strides[2] + kv * strides[3];
    return static_cast<const uint8_t*>(arguments.keep_mask->data)[offset] != 0 ? factor : 0.0;
  }
  if (problem.dropout == 0) {
    return 1.0;
  }
  const auto [seed, origin] = dropout_counter(arguments);
  const std::array<uint32_t, 4> words =
      philox({static_cast<uint32_t>(kv / 64 * 16 + kv % 16), static_cast<uint32_t>(q),
              static_cast<uint32_t>(origin[1] + h), static_cast<uint32_t>(origin[0] + b)},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const double threshold = std::round(std::ldexp(static_cast<double>(problem.dropout), 32));
  return words[static_cast<size_t>(kv / 16 % 4)] >= threshold ? factor : 0.0;
}

}  // namespace flashlift::problem
