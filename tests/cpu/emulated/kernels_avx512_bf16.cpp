// The bf16 pair kernels, unchanged, with an emulated dot product. Requires AVX-512.
#define FLASHLIFT_ISA_NAMESPACE emulated_avx512_bf16
#define FLASHLIFT_ISA_VALUE Isa::kAvx512
#define FLASHLIFT_PAIR_PRODUCT "emulated/product_avx512_bf16.h"

#include "cpu/tile/x86/vector_avx512.h"

#include "cpu/tile/x86/pairs_impl.h"

#include "cpu/tile/kernels_impl.h"
