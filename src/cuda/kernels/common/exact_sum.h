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

// An integer times 2^(shift - 149), which touches three digits, may be added for shifts below this one.
constexpr int kExactHighestInteger = kExactDigitBits * (kExactDigits - 2);

// Of sums in a block's shared memory (block_sums.cuh): the bits from one word to the next, and the bytes before the
// words.
constexpr int kBlockWordBits = 8;
constexpr int kBlockSumHeader = 16;

}  // namespace flashlift::cuda
