// The shared memory of the portable kernels and the kernels for few queries, and how tiles are loaded.
#pragma once

#include "cuda/kernels/common/keys.cuh"
#include "cuda/kernels/sm80/ptx.cuh"

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
#if FL_BULK_COPIES  // of boxes: see sm90/copies.cuh
constexpr int kKElements = FL_BLOCK_N * ((FL_QK_DIM + 63) / 64 * 64);
constexpr int kVElements = FL_BLOCK_N * ((FL_V_DIM + 63) / 64 * 64);
#else
constexpr int kKElements = FL_BLOCK_N * kQkRow;
constexpr int kVElements = FL_BLOCK_N * kVRow;
#endif
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
      // Nothing is read outside the tensor, but the address must be valid all the same.
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

// Copies a whole tile of keys or values whose rows have kColumns columns. Each thread copies one column, in rows that
// are a constant apart: an address costs one addition, whereas load_tile's addresses took more time than the copies
// (docs/lessons).
template <int kColumns, int kRowElements>
struct WholeTile {
  static constexpr int kChunks = kColumns / kChunk;
  static constexpr int kStep = kThreads / kChunks;  // rows that all threads copy at once
  static constexpr int kCopies = FL_BLOCK_N * kChunks / kThreads;
  // More than sixteen copies spill registers.
  static constexpr bool kPossible = kThreads % kChunks == 0 && kCopies <= 8 && FL_BLOCK_N % (kStep > 0 ? kStep : 1) == 0 &&
                                    FL_PAGE_SIZE % (kStep > 0 ? kStep : 1) == 0;

  static __device__ __forceinline__ void load(InputElement* tile, const void* tensor, const Strides& strides,
                                              const ForwardParams& params, int b, int kv_head, int kv) {
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    const int column = static_cast<int>(threadIdx.x) % kChunks * kChunk;
    const u32 destination = shared_address(tile + row * kRowElements + column);
    constexpr int kBytes = kStep * kRowElements * static_cast<int>(sizeof(InputElement));
#if FL_PAGE_SIZE
    // Rows that are copied at once lie in one page. All pages are looked up first, which takes the time of one lookup.
    int page[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      page[i] = page_of_key(params, b, kv + i * kStep);
    }
    const InputElement* const head = static_cast<const InputElement*>(tensor) + kv_head * strides.head + column;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async(destination + i * kBytes,
                 head + page[i] * strides.batch + (row_of_key(kv + i * kStep) + row) * strides.row);
    }
#else
    const InputElement* source = key_row(tensor, strides, params, b, kv_head, kv + row) + column;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async(destination + i * kBytes, source);
      source += kStep * strides.row;
    }
#endif
  }
};

// The same of the keys and values of a tile.
__device__ __forceinline__ void load_keys(InputElement* k, InputElement* v, const ForwardParams& params, int b,
                                          int kv_head, int kv_tile) {
  const int row = kv_tile * FL_BLOCK_N;
  using KTile = WholeTile<FL_QK_DIM, kQkRow>;
  using VTile = WholeTile<FL_V_DIM, kVRow>;
  if (KTile::kPossible && VTile::kPossible && FL_HEAD_DIM == FL_QK_DIM && FL_VALUE_DIM == FL_V_DIM &&
      params.vector_k && params.vector_v && row + FL_BLOCK_N <= params.kv_len) {
    KTile::load(k, params.k, params.k_strides, params, b, kv_head, row);
    VTile::load(v, params.v, params.v_strides, params, b, kv_head, row);
    return;
  }
  const auto k_row = [&](int kv) { return key_row(params.k, params.k_strides, params, b, kv_head, kv); };
  const auto v_row = [&](int kv) { return key_row(params.v, params.v_strides, params, b, kv_head, kv); };
  load_tile<FL_BLOCK_N, FL_QK_DIM, kQkRow>(k, k_row, params.k_strides.column, row, params.kv_len, FL_HEAD_DIM,
                                           params.vector_k);
  load_tile<FL_BLOCK_N, FL_V_DIM, kVRow>(v, v_row, params.v_strides.column, row, params.kv_len, FL_VALUE_DIM,
                                         params.vector_v);
}

}  // namespace flashlift::cuda
