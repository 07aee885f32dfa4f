// Compiled for AVX-512 with the bf16 dot product. Called only if CPUID reports it.
#define FLASHLIFT_ISA_NAMESPACE avx512_bf16
#define FLASHLIFT_ISA_VALUE Isa::kAvx512Bf16
#define FLASHLIFT_PAIR_PRODUCT "cpu/tile/x86/pair_product_avx512_bf16.h"

#include "cpu/tile/x86/vector_avx512.h"

#include "cpu/tile/x86/pairs_impl.h"

#include "cpu/tile/kernels_impl.h"
