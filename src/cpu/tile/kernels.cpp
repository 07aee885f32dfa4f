#include "cpu/tile/kernels.h"

namespace flashlift::cpu {

namespace avx2 {
const TileKernels& kernels();
}
namespace avx512 {
const TileKernels& kernels();
}

const TileKernels& tile_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return avx2::kernels();
    case Isa::kAvx512:
      return avx512::kernels();
  }
  return avx2::kernels();
}

}  // namespace flashlift::cpu
