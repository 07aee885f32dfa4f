// Shared memory of the portable kernels, and how tiles get there.
#pragma once

#include "keys.cuh"
#include "sm80_ptx.cuh"

namespace flashlift::cuda {

// A warp has 16 query rows and all keys of a tile, or all rows and 16 keys.
constexpr int kWarps = FL_SPLIT ? FL_BLOCK_N / 16 : FL_BLOCK_M / 16;
constexpr int kWarpKeys = FL_SPLIT ? 16 : FL_BLOCK_N;
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
constexpr int kPRow = kWarpKeys + 4;
constexpr int kPElements = FL_INPUT_F32 ? kWarps * 16 * kPRow : 0;
static_assert((kQElements + kStages * (kKElements + kVElements) + kPElements) * sizeof(InputElement) <=
                  FL_SHARED_BYTES,
              "the host reserves less shared memory than the kernel uses");

// Rows [row, row + kRows), columns up to `columns`, zeros beyond: a padded column must not bring NaN into a product.
// `address_of` gives the address of a row.
template <int kRows, int kColumns, int kRowElements, typename AddressOf>
__device__ __forceinline__ void load_tile(InputElement* tile, const AddressOf& address_of, long long column_stride,
                                          int row, int rows, int columns, bool vectors) {
  if (vectors) {
    constexpr int kChunks = kColumns / kChunk;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
      const int r = i / kChunks;
      const int c = i % kChunks * kChunk;
      const bool inside = row + r < rows && c < columns;
      // Nothing is read where it is outside; the address must be one all the same.
      copy_async(shared_address(tile + r * kRowElements + c), address_of(inside ? row + r : 0) + (inside ? c : 0),
                 inside);
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
      const int r = i / kColumns;
      const int c = i % kColumns;
      const bool inside = row + r < rows && c < columns;
      tile[r * kRowElements + c] = inside ? address_of(row + r)[c * column_stride] : InputElement(0);
    }
  }
}

// The same of the keys and values of a tile.
__device__ __forceinline__ void load_keys(InputElement* k, InputElement* v, const ForwardParams& params, int b,
                                          int kv_head, int kv_tile) {
  const int row = kv_tile * FL_BLOCK_N;
  const auto k_row = [&](int kv) { return key_row(params.k, params.k_strides, params, b, kv_head, kv); };
  const auto v_row = [&](int kv) { return key_row(params.v, params.v_strides, params, b, kv_head, kv); };
  load_tile<FL_BLOCK_N, FL_QK_DIM, kQkRow>(k, k_row, params.k_strides.column, row, params.kv_len, FL_HEAD_DIM,
                                           params.vector_k);
  load_tile<FL_BLOCK_N, FL_V_DIM, kVRow>(v, v_row, params.v_strides.column, row, params.kv_len, FL_VALUE_DIM,
                                         params.vector_v);
}

}  // namespace flashlift::cuda
