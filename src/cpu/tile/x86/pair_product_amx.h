// AMX tiles, and the AVX-512 dot product for rows that do not fill a tile, for pairs_impl.h.
#pragma once

#define FLASHLIFT_TILE_CONFIGURE(configuration) _tile_loadconfig(configuration)
#define FLASHLIFT_TILE_RELEASE() _tile_release()
#define FLASHLIFT_TILE_ZERO(tile) _tile_zero(tile)
#define FLASHLIFT_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define FLASHLIFT_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define FLASHLIFT_TILE_DOT(sum, a, b) _tile_dpbf16ps(sum, a, b)

#include "cpu/tile/x86/amx_tiles.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

Float dot(Float sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

__m256i round_bf16(Float x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
__m512i round_bf16(Float first, Float second) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)); }

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
