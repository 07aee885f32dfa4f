#include "cpu/tile/capabilities.h"

#include <iterator>

namespace flashlift::cpu {
namespace {

constexpr const char* words_for(Capability capability) {
  switch (capability) {
    case Capability::kAvx2:
      return "AVX2 with FMA and F16C";
    case Capability::kAvx512:
      return "AVX-512 with BW, DQ and VL";
    case Capability::kAvx512Bf16:
      return "AVX-512's bf16 dot product";
    case Capability::kFastBf16Dot:
      return "a bf16 dot product that is faster than f32 multiply-adds";
    case Capability::kAmx:
      return "AMX with bf16 tiles";
  }
  return "?";
}
static_assert(*words_for(static_cast<Capability>(std::size(kAllCapabilities))) == '?',
              "kAllCapabilities lacks a capability");

}  // namespace

const char* describe(Capability capability) { return words_for(capability); }

}  // namespace flashlift::cpu
