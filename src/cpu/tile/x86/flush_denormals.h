// A part of the vector types of x86.
#pragma once

#include <immintrin.h>

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {

// During its lifetime, numbers below 2^-126 are read and written as zeros. A processor takes some hundred cycles for a
// multiply-add with such a result, and sums of small probabilities may contain many: with ALiBi, the backward pass took
// four times as long.
class FlushDenormalsOfX86 {
 public:
  FlushDenormalsOfX86() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormalsOfX86() { _mm_setcsr(before_); }
  FlushDenormalsOfX86(const FlushDenormalsOfX86&) = delete;
  FlushDenormalsOfX86& operator=(const FlushDenormalsOfX86&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x40;
  unsigned before_;
};

}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
