// Compiled for AVX2, FMA and F16C. Called only if CPUID reports these.
#define FLASHLIFT_ISA_NAMESPACE avx2
#define FLASHLIFT_ISA_VALUE Isa::kAvx2

#include "cpu/tile/x86/vector_avx2.h"

#include "cpu/tile/kernels_impl.h"
