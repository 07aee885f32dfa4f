// Replaces tile/x86/pair_product_amx.h: emulates AMX's tiles by arrays. Supports only full tiles, which the kernels
// configure. A thread that uses tiles outside begin() and end() gets NaN.
#pragma once

#include <cmath>
#include <cstring>

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

struct EmulatedTiles {
  bool configured = false;
  alignas(64) float words[8][16][16];
};
thread_local EmulatedTiles tiles;

void tile_configure(const void*) { tiles.configured = true; }
void tile_release() { tiles.configured = false; }
void tile_zero(int tile) { std::memset(tiles.words[tile], 0, sizeof(tiles.words[tile])); }
void tile_load(int tile, const void* from, int64_t stride) {
  for (int64_t r = 0; r < 16; ++r) {
    std::memcpy(tiles.words[tile][r], static_cast<const char*>(from) + r * stride, 64);
  }
}
void tile_store(int tile, void* to, int64_t stride) {
  for (int64_t r = 0; r < 16; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tiles.words[tile][r], 64);
  }
}
// As Intel's manual defines it: even and odd elements have separate sums, which are added to the tile at the end.
void tile_dot(int sum, int a, int b) {
  const FlushDenormalsOfX86 flush;
  const auto even = [](__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); };
  const auto odd = [](__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  };
  for (int r = 0; r < 16; ++r) {
    Float of_even = Vector::zero();
    Float of_odd = Vector::zero();
    for (int k = 0; k < 16; ++k) {
      const __m512i row = _mm512_castps_si512(_mm512_load_ps(tiles.words[b][k]));
      const __m512i element = _mm512_castps_si512(Vector::set(tiles.words[a][r][k]));
      of_even = Vector::fma(even(element), even(row), of_even);
      of_odd = Vector::fma(odd(element), odd(row), of_odd);
    }
    float* to = tiles.words[sum][r];
    const Float total = _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(of_even, of_odd));
    _mm512_store_ps(to, tiles.configured ? total : Vector::set(std::nanf("")));
  }
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE

#define FLASHLIFT_TILE_CONFIGURE(configuration) tile_configure(configuration)
#define FLASHLIFT_TILE_RELEASE() tile_release()
#define FLASHLIFT_TILE_ZERO(tile) tile_zero(tile)
#define FLASHLIFT_TILE_LOAD(tile, from, stride) tile_load(tile, from, stride)
#define FLASHLIFT_TILE_STORE(tile, to, stride) tile_store(tile, to, stride)
#define FLASHLIFT_TILE_DOT(sum, a, b) tile_dot(sum, a, b)

#include "cpu/tile/x86/amx_tiles.h"

#include "emulated/bf16_dot.h"
