#include "cpu/tile/capabilities.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/lazy.h"

namespace flashlift::cpu {
namespace {

// Linux enables the tiles' large register state only on request, once for all threads of the process.
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

Capabilities detect_capabilities() {
  // The builtins read CPUID and XGETBV, so that a capability whose registers the operating system does not save counts
  // as missing.
  __builtin_cpu_init();
  Capabilities found;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    found.add(Capability::kAvx2);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    found.add(Capability::kAvx512);
  }
  if (__builtin_cpu_supports("avx512bf16")) {
    found.add(Capability::kAvx512Bf16);
    // On AMD's processors, the bf16 dot product takes half as long as the two multiply-adds that it replaces. On
    // Intel's it takes four times as long as one multiply-add, and AMX is the better choice.
    if (__builtin_cpu_is("amd")) {
      found.add(Capability::kFastBf16Dot);
    }
  }
  static constinit Lazy<const bool> has_amx;
  if (has_amx.get(request_amx)) {
    found.add(Capability::kAmx);
  }
  return found;
}

}  // namespace flashlift::cpu
