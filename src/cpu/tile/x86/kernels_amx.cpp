// Compiled for AMX with bf16, and AVX-512 with the bf16 dot product. Called only if CPUID and the operating system
// report these.
#define FLASHLIFT_ISA_NAMESPACE amx
#define FLASHLIFT_ISA_VALUE Isa::kAmx
#define FLASHLIFT_PAIR_PRODUCT "cpu/tile/x86/pair_product_amx.h"

#include "cpu/tile/x86/vector_avx512.h"

#include "cpu/tile/x86/pairs_impl.h"

#include "cpu/tile/kernels_impl.h"
