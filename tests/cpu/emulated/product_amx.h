// Stands for tile/pair_product_amx.h: AMX's tiles as arrays, with full tiles only, as the kernels configure them. A
// thread that uses them outside of begin() and end() gets NaN.
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
float bf16_half(float pair, int half) {
  uint32_t bits;
  std::memcpy(&bits, &pair, sizeof(bits));
  bits = half == 0 ? bits << 16 : bits & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
void tile_dot(int sum, int a, int b) {
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) {
      float& total = tiles.words[sum][r][c];
      total = tiles.configured ? total : std::nanf("");
      for (int k = 0; k < 16; ++k) {
        for (const int half : {0, 1}) {
          total = std::fma(bf16_half(tiles.words[a][r][k], half), bf16_half(tiles.words[b][k][c], half), total);
        }
      }
    }
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
