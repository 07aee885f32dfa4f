// How much work it may be to look for attention in a module.
#pragma once

#include <cstdint>

namespace flashlift::stablehlo {

// Counted in steps of about a microsecond, not in time, so that a module gives the same result on every machine.
// Modules of hundreds of layers take less than a hundredth.
class Work {
 public:
  static constexpr int64_t kMost = int64_t{1} << 23;             // for a module
  static constexpr int64_t kMostOfAnAttempt = int64_t{1} << 18;  // each step of which remembers its result

  bool is_spent() const { return left_ <= 0; }
  void spend(int64_t steps) { left_ -= steps; }

 private:
  int64_t left_ = kMost;
};

}  // namespace flashlift::stablehlo
