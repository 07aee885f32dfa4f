#include "cpu/tile/isa.h"

#include "support/environment.h"
#include "support/error.h"

namespace flashlift::cpu {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

std::optional<Isa> detect_isa() {
  // The builtins ask CPUID and XGETBV, so an operating system that does not save the registers counts as lacking them.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return std::nullopt;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  return Isa::kAvx2;
}

Result<Isa> choose_isa() {
  const std::optional<Isa> best = detect_isa();
  if (!best) {
    return unsupported("the CPU backend needs AVX2, FMA and F16C, which this processor does not have");
  }
  const std::optional<std::string_view> wanted = environment_value(EnvironmentVariable::kIsa);
  if (!wanted) {
    return *best;
  }
  if (*wanted == "avx2") {
    return Isa::kAvx2;
  }
  // The sets above AVX-512 have no kernels of their own yet; as upper limits they allow AVX-512.
  if (*wanted == "avx512" || *wanted == "avx512_bf16" || *wanted == "amx") {
    return *best;
  }
  return invalid_argument("FLASHLIFT_ISA is '{}', expected avx2, avx512, avx512_bf16 or amx", *wanted);
}

}  // namespace flashlift::cpu
