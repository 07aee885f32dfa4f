// The bf16 dot product in f32 arithmetic, for processors without it. Like the instruction, it reads and writes numbers
// below 2^-126 as zeros, whatever the thread's own setting is.
#pragma once

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

Float dot(Float sum, __m512i a, __m512i b) {
  const FlushDenormalsOfX86 flush;
  const __m512i upper = _mm512_set1_epi32(-65536);
  const auto even = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
  const auto odd = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, upper)); };
  return Vector::fma(even(a), even(b), Vector::fma(odd(a), odd(b), sum));
}

__m256i round_bf16(Float x) { return Vector::narrow_bf16(x); }
__m512i round_bf16(Float first, Float second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(round_bf16(first)), round_bf16(second), 1);
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
