#include "cpu/tile/isa.h"

#include <iterator>

namespace flashlift::cpu {
namespace {

constexpr const char* name_of(Isa isa) {
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
static_assert(*name_of(static_cast<Isa>(std::size(kAllIsas))) == '?', "kAllIsas lacks an instruction set");

}  // namespace

const char* to_string(Isa isa) { return name_of(isa); }

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
