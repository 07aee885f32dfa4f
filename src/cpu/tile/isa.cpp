#include "cpu/tile/isa.h"

namespace flashlift::cpu {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
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

Capabilities needs_of(Isa isa) {
  using enum Capability;
  switch (isa) {
    case Isa::kPortable:
      return {};
    case Isa::kAvx2:
      return {kAvx2};
    case Isa::kAvx512:
      return {kAvx2, kAvx512};
    case Isa::kAvx512Bf16:
      return {kAvx2, kAvx512, kAvx512Bf16};
    case Isa::kAmx:
      return {kAvx2, kAvx512, kAvx512Bf16, kAmx};
  }
  return {};
}

}  // namespace flashlift::cpu
