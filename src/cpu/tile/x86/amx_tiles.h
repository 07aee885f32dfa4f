// The matrix product in AMX tiles of 16 rows, for pairs_impl.h. The dot product computes the rows that do not fill a
// tile.
//
// Uses the macros FLASHLIFT_TILE_*, so that tests can run it without AMX: the intrinsics take the number of a tile as a
// literal.
#pragma once

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

constexpr int kDepthMultiple = 32;  // of a tile of A
constexpr int64_t kTileRows = 16;

// Palette 1 with all eight tiles at their full 16 rows of 64 bytes: C in tiles 0 to 3, A in 4 and 5, B in 6 and 7.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

void begin_pairs() {
  static constexpr TileConfiguration kConfiguration;
  FLASHLIFT_TILE_CONFIGURE(&kConfiguration);
}

void end_pairs() { FLASHLIFT_TILE_RELEASE(); }

// C[16 or 32 rows x 16 or 32 columns]; strides in bytes.
template <bool kTwoRows, bool kTwoColumns>
void multiply_block(int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool accumulate) {
  float* c_below = c + kTileRows * c_stride / 4;
  if (accumulate) {
    FLASHLIFT_TILE_LOAD(0, c, c_stride);
    if constexpr (kTwoColumns) {
      FLASHLIFT_TILE_LOAD(1, c + 16, c_stride);
    }
    if constexpr (kTwoRows) {
      FLASHLIFT_TILE_LOAD(2, c_below, c_stride);
    }
    if constexpr (kTwoRows && kTwoColumns) {
      FLASHLIFT_TILE_LOAD(3, c_below + 16, c_stride);
    }
  } else {
    FLASHLIFT_TILE_ZERO(0);
    FLASHLIFT_TILE_ZERO(1);
    FLASHLIFT_TILE_ZERO(2);
    FLASHLIFT_TILE_ZERO(3);
  }
  for (int64_t k = 0; k < depth; k += kDepthMultiple) {
    FLASHLIFT_TILE_LOAD(4, a + k, a_stride);
    FLASHLIFT_TILE_LOAD(6, b, b_stride);
    FLASHLIFT_TILE_DOT(0, 4, 6);
    if constexpr (kTwoColumns) {
      FLASHLIFT_TILE_LOAD(7, b + 32, b_stride);
      FLASHLIFT_TILE_DOT(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      FLASHLIFT_TILE_LOAD(5, a + kTileRows * a_stride / 2 + k, a_stride);
      FLASHLIFT_TILE_DOT(2, 5, 6);
    }
    if constexpr (kTwoRows && kTwoColumns) {
      FLASHLIFT_TILE_DOT(3, 5, 7);
    }
    b += kDepthMultiple / 2 * b_stride / 2;
  }
  FLASHLIFT_TILE_STORE(0, c, c_stride);
  if constexpr (kTwoColumns) {
    FLASHLIFT_TILE_STORE(1, c + 16, c_stride);
  }
  if constexpr (kTwoRows) {
    FLASHLIFT_TILE_STORE(2, c_below, c_stride);
  }
  if constexpr (kTwoRows && kTwoColumns) {
    FLASHLIFT_TILE_STORE(3, c_below + 16, c_stride);
  }
}

template <bool kTwoRows>
void multiply_tile_rows(int vectors, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b, int64_t b_stride,
                        float* c, int64_t c_stride, bool accumulate) {
  int v = 0;
  for (; v + 2 <= vectors; v += 2) {
    multiply_block<kTwoRows, true>(depth, a, a_stride, b + v * 32, b_stride, c + v * 16, c_stride, accumulate);
  }
  if (v < vectors) {
    multiply_block<kTwoRows, false>(depth, a, a_stride, b + v * 32, b_stride, c + v * 16, c_stride, accumulate);
  }
}

// Returns the number of rows that it computed.
int64_t multiply_tiles(int64_t rows, int vectors, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b,
                       int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  const int64_t a_bytes = a_stride * 2;
  const int64_t b_bytes = b_stride * 4;
  const int64_t c_bytes = c_stride * 4;
  int64_t r = 0;
  for (; r + 2 * kTileRows <= rows; r += 2 * kTileRows) {
    multiply_tile_rows<true>(vectors, depth, a + r * a_stride, a_bytes, b, b_bytes, c + r * c_stride, c_bytes,
                             accumulate);
  }
  if (r + kTileRows <= rows) {
    multiply_tile_rows<false>(vectors, depth, a + r * a_stride, a_bytes, b, b_bytes, c + r * c_stride, c_bytes,
                              accumulate);
    r += kTileRows;
  }
  return r;
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
