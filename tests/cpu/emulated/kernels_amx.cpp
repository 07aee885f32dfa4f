// The AMX kernels, unchanged, with emulated tiles. Requires AVX-512.
#define FLASHLIFT_ISA_NAMESPACE emulated_amx
#define FLASHLIFT_ISA_VALUE Isa::kAvx512
#define FLASHLIFT_PAIR_PRODUCT "emulated/product_amx.h"

#include "cpu/tile/x86/vector_avx512.h"

#include "cpu/tile/x86/pairs_impl.h"

#include "cpu/tile/kernels_impl.h"
