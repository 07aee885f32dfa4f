#include "cpu/jit/math_library.h"

// The vector function ABI's names: e or d for AVX-512 or AVX2, N for unmasked, lanes, v per vector operand. Declared
// without their vector types, since only their addresses are taken here.
#define FLASHLIFT_MATH_LIBRARY(X) \
  X(pow, powf, vv)                \
  X(expm1, expm1f, v) X(log2, log2f, v) X(log1p, log1pf, v) X(sin, sinf, v) X(cos, cosf, v) X(erf, erff, v)

extern "C" {
#define FLASHLIFT_DECLARE(op, name, operands) \
  void _ZGVeN16##operands##_##name();         \
  void _ZGVdN8##operands##_##name();
FLASHLIFT_MATH_LIBRARY(FLASHLIFT_DECLARE)
#undef FLASHLIFT_DECLARE
}

namespace flashlift::cpu {
namespace {

const LibraryFunction kAvx512[] = {
#define FLASHLIFT_ENTRY(op, name, operands) \
  {Op::k_##op, "_ZGVeN16" #operands "_" #name, reinterpret_cast<void*>(&_ZGVeN16##operands##_##name)},
    FLASHLIFT_MATH_LIBRARY(FLASHLIFT_ENTRY)
#undef FLASHLIFT_ENTRY
};

const LibraryFunction kAvx2[] = {
#define FLASHLIFT_ENTRY(op, name, operands) \
  {Op::k_##op, "_ZGVdN8" #operands "_" #name, reinterpret_cast<void*>(&_ZGVdN8##operands##_##name)},
    FLASHLIFT_MATH_LIBRARY(FLASHLIFT_ENTRY)
#undef FLASHLIFT_ENTRY
};

}  // namespace

std::span<const LibraryFunction> math_library(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return kAvx512;
  }
  return {};
}

}  // namespace flashlift::cpu
