#include "cpu/tile/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "support/environment.h"
#include "support/error.h"

namespace flashlift::cpu {
namespace {

// Linux gives a process the tiles' large state only on request, once for all its threads.
bool request_amx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) {
    return false;
  }
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) {
    return false;
  }
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, which older systems lack
  constexpr long kTileData = 18;               // its XSAVE feature
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

std::optional<Isa> detect_isa() {
  // The builtins ask CPUID and XGETBV, so an operating system that does not save the registers counts as lacking them.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return std::nullopt;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) {
    return Isa::kAvx512;
  }
  static const bool has_amx = request_amx();
  return has_amx ? Isa::kAmx : Isa::kAvx512Bf16;
}

bool has_fast_bf16_dot() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
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
  for (const Isa isa : kAllIsas) {
    if (*wanted == to_string(isa)) {
      return std::min(*best, isa);
    }
  }
  return invalid_argument("FLASHLIFT_ISA is '{}', expected avx2, avx512, avx512_bf16 or amx", *wanted);
}

}  // namespace flashlift::cpu
