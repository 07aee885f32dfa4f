// Shared memory of the portable forward kernel, and how tiles get there.
#pragma once

#include "forward_params.h"
#include "sm80_ptx.cuh"

namespace flashlift::cuda {

constexpr int kWarps = FL_BLOCK_M / 16;  // 16 query rows each
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = FL_STAGES;

// Rows are padded by 16 bytes, which puts eight rows into different banks.
constexpr int kChunk = 16 / sizeof(InputElement);  // elements of one 16-byte copy
constexpr int kQkRow = FL_QK_DIM + kChunk;
constexpr int kVRow = FL_V_DIM + kChunk;
constexpr int kQElements = FL_BLOCK_M * kQkRow;
constexpr int kKElements = FL_BLOCK_N * kQkRow;
constexpr int kVElements = FL_BLOCK_N * kVRow;
// f32 only: probabilities, which its products read from shared memory.
constexpr int kPRow = FL_BLOCK_N + 4;
constexpr int kPElements = FL_INPUT_F32 ? FL_BLOCK_M * kPRow : 0;
static_assert((kQElements + kStages * (kKElements + kVElements) + kPElements) * sizeof(InputElement) <=
                  FL_SHARED_BYTES,
              "the host reserves less shared memory than the kernel uses");

// Rows [row, row + kRows) of one (batch, head), columns up to `columns`, zeros beyond: a padded column must not bring
// NaN into a product.
template <int kRows, int kColumns, int kRowElements>
__device__ __forceinline__ void load_tile(InputElement* tile, const void* tensor, const Strides& strides, int b, int h,
                                          int row, int rows, int columns, bool vectors) {
  const InputElement* source =
      static_cast<const InputElement*>(tensor) + b * strides.batch + h * strides.head + row * strides.row;
  if (vectors) {
    constexpr int kChunks = kColumns / kChunk;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
      const int r = i / kChunks;
      const int c = i % kChunks * kChunk;
      const bool inside = row + r < rows && c < columns;
      copy_async(shared_address(tile + r * kRowElements + c), inside ? source + r * strides.row + c : source, inside);
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
      const int r = i / kColumns;
      const int c = i % kColumns;
      const bool inside = row + r < rows && c < columns;
      tile[r * kRowElements + c] = inside ? source[r * strides.row + c * strides.column] : InputElement(0);
    }
  }
}

}  // namespace flashlift::cuda
