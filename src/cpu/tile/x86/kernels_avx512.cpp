// Compiled for AVX-512 F, BW, DQ and VL. Called only if CPUID reports these.
#define FLASHLIFT_ISA_NAMESPACE avx512
#define FLASHLIFT_ISA_VALUE Isa::kAvx512

#include "cpu/tile/x86/vector_avx512.h"

#include "cpu/tile/kernels_impl.h"
