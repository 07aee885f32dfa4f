#include "cpu/dropout.h"

#include "cpu/tile/philox.h"

namespace flashlift::cpu {

bool keeps(const Dropout& dropout, const DropoutRow& row, int64_t kv) {
  uint32_t words[4] = {static_cast<uint32_t>(kv / 64 * 16 + kv % 16), static_cast<uint32_t>(row.q),
                       static_cast<uint32_t>(row.h), static_cast<uint32_t>(row.b)};
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
