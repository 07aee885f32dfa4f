#include "plan/cpu_lists.h"

namespace flashlift::plan {
namespace {

using cpu::Capability;
using cpu::Isa;

constexpr CpuImplementation kList[] = {
    {.full_name = "cpu_amx", .isa = Isa::kAmx, .bf16_products = true},
    {.full_name = "cpu_avx512_bf16",
     .isa = Isa::kAvx512Bf16,
     .bf16_products = true,
     .faster_with = Capability::kFastBf16Dot},
    {.full_name = "cpu_avx512", .isa = Isa::kAvx512},
    {.full_name = "cpu_avx2", .isa = Isa::kAvx2},
    {.full_name = "cpu_portable", .isa = Isa::kPortable},
};

}  // namespace

std::span<const CpuImplementation> cpu_backward_list() { return kList; }

}  // namespace flashlift::plan
