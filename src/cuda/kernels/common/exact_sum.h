// The words of an exact sum. The host compiler and NVRTC read this file.
#pragma once

namespace flashlift::cuda {

// A sum of f32 numbers that does not depend on their order: integer digits that together cover every exponent of f32.
// Digit i counts multiples of 2^(kExactDigitBits * i - 149). An addition touches two digits at most, each by less than
// 2^kExactDigitBits, so that 64 bits hold 2^35 additions. One more word has a bit for each kind of number that no digit
// can hold.
constexpr int kExactDigitBits = 28;
constexpr int kExactDigits = 10;
constexpr int kExactWords = kExactDigits + 1;

}  // namespace flashlift::cuda
