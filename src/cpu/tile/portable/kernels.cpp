// Kernels for any processor.
#define FLASHLIFT_ISA_NAMESPACE portable
#define FLASHLIFT_ISA_VALUE Isa::kPortable

#include "cpu/tile/portable/vector.h"

#include "cpu/tile/kernels_impl.h"
