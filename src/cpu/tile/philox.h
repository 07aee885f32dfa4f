// Constants of Philox4x32 (Salmon et al., 2011), shared by the instruction sets. Seven rounds pass all statistical
// tests that its authors report. Ten, the usual number, would make dropout half as expensive again.
#pragma once

#include <cstdint>

namespace flashlift::cpu {

inline constexpr int kPhiloxRounds = 7;
inline constexpr uint32_t kPhiloxMultipliers[2] = {0xd2511f53, 0xcd9e8d57};
inline constexpr uint32_t kPhiloxKeySteps[2] = {0x9e3779b9, 0xbb67ae85};

}  // namespace flashlift::cpu
