#include "cpu/jit/math_library.h"

#include <algorithm>

// Names by the vector function ABI: e or d for AVX-512 or AVX2, N for unmasked, the number of lanes, and a v for each
// vector operand. They are declared without vector types, because only their addresses are used.
extern "C" {
#define FLASHLIFT_DECLARE(function, operands) \
  void _ZGVeN16##operands##_##function();     \
  void _ZGVdN8##operands##_##function();
#define FLASHLIFT_LIBRARY(...) __VA_OPT__(FLASHLIFT_DECLARE(__VA_ARGS__))
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, cpu_integer, library, ...)                                                    \
  FLASHLIFT_LIBRARY library
#include "flashlift/ops.def"
#undef FLASHLIFT_LIBRARY
}

namespace flashlift::cpu {
namespace {

const LibraryFunction kAvx512[] = {
#define FLASHLIFT_AVX512(function, operands) \
  {#function, "_ZGVeN16" #operands "_" #function, reinterpret_cast<void*>(&_ZGVeN16##operands##_##function)},
#define FLASHLIFT_LIBRARY(...) __VA_OPT__(FLASHLIFT_AVX512(__VA_ARGS__))
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, cpu_integer, library, ...)                                                    \
  FLASHLIFT_LIBRARY library
#include "flashlift/ops.def"
#undef FLASHLIFT_LIBRARY
};

const LibraryFunction kAvx2[] = {
#define FLASHLIFT_AVX2(function, operands) \
  {#function, "_ZGVdN8" #operands "_" #function, reinterpret_cast<void*>(&_ZGVdN8##operands##_##function)},
#define FLASHLIFT_LIBRARY(...) __VA_OPT__(FLASHLIFT_AVX2(__VA_ARGS__))
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, cpu_integer, library, ...)                                                    \
  FLASHLIFT_LIBRARY library
#include "flashlift/ops.def"
#undef FLASHLIFT_LIBRARY
};

}  // namespace

std::span<const LibraryFunction> math_library(Isa isa) {
  switch (isa) {
    case Isa::kPortable:  // programs are interpreted
      return {};
    case Isa::kAvx2:
      return kAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return kAvx512;
  }
  return {};
}

const LibraryFunction* vector_function(std::string_view scalar, Isa isa) {
  const std::span<const LibraryFunction> library = math_library(isa);
  const auto found = std::ranges::find(library, scalar, &LibraryFunction::scalar);
  return found == library.end() ? nullptr : &*found;
}

}  // namespace flashlift::cpu
