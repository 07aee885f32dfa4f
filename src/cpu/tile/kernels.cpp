#include "cpu/tile/kernels.h"

namespace flashlift::cpu {

namespace portable {
const TileKernels& kernels();
}

#ifdef FLASHLIFT_HAS_X86
namespace avx2 {
const TileKernels& kernels();
}
namespace avx512 {
const TileKernels& kernels();
}
namespace avx512_bf16 {
const TileKernels& kernels();
}
namespace amx {
const TileKernels& kernels();
}
#endif

const TileKernels& tile_kernels(Isa isa) {
  switch (isa) {
#ifdef FLASHLIFT_HAS_X86
    case Isa::kAvx2:
      return avx2::kernels();
    case Isa::kAvx512:
      return avx512::kernels();
    case Isa::kAvx512Bf16:
      return avx512_bf16::kernels();
    case Isa::kAmx:
      return amx::kernels();
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
#endif
    case Isa::kPortable:
      break;
  }
  return portable::kernels();
}

}  // namespace flashlift::cpu
