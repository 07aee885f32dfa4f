// The sets of tile kernels, each compiled for an instruction set.
#pragma once

#include <cstdint>

#include "cpu/tile/capabilities.h"

namespace flashlift::cpu {

enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };
inline constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

const char* to_string(Isa isa);  // "avx2"

// The capabilities that a processor needs to run them.
Capabilities needs_of(Isa isa);

}  // namespace flashlift::cpu
