// The instruction sets that the tile kernels are compiled for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::cpu {

// In ascending order: a machine that has one has all before it.
enum class Isa : uint8_t {
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and BF16: the bf16 dot product
  kAmx,         // and AMX-TILE, AMX-BF16
};

inline constexpr Isa kAllIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

const char* to_string(Isa isa);

// The best set that this processor and operating system have, whatever the environment says; nothing below AVX2.
std::optional<Isa> detect_isa();

// Whether the bf16 dot product outruns f32 multiply-adds: on AMD's processors by two; Intel's take four times as long
// for it as for a multiply-add, and leave bf16 to AMX.
bool has_fast_bf16_dot();

// detect_isa(), lowered to FLASHLIFT_ISA where that is set. Errors: kUnsupported without AVX2, kInvalidArgument for an
// unknown FLASHLIFT_ISA.
Result<Isa> choose_isa();

}  // namespace flashlift::cpu
