#include "cpu/tile/kernels.h"

namespace flashlift::cpu {

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

const TileKernels& tile_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return avx2::kernels();
    case Isa::kAvx512:
      return avx512::kernels();
    case Isa::kAvx512Bf16:
      return avx512_bf16::kernels();
    case Isa::kAmx:
      return amx::kernels();
  }
  return avx2::kernels();
}

}  // namespace flashlift::cpu
