// Bulk copies of tiles of keys and values, paged or not.
#pragma once

#include "cuda/kernels/common/keys.cuh"
#include "cuda/kernels/sm90/ptx.cuh"

namespace flashlift::cuda {

// A row of shared memory is 64 elements: what one 128-byte swizzle covers. Wider heads are several boxes.
constexpr int kQkBoxes = (FL_QK_DIM + 63) / 64;
constexpr int kVBoxes = (FL_V_DIM + 63) / 64;
constexpr u32 kKvBoxBytes = FL_BLOCK_N * 128;
constexpr u32 kKBytes = kQkBoxes * kKvBoxBytes;
constexpr u32 kVBytes = kVBoxes * kKvBoxBytes;

// The number of keys per copy: a whole tile, or a piece within one page. Each lane copies one piece.
constexpr int kPieceKeys = FL_PAGE_SIZE > 0 ? FL_PAGE_PIECE : FL_BLOCK_N;
constexpr int kPieces = FL_BLOCK_N / kPieceKeys;
static_assert(kPieces <= 32 && kPieceKeys % 8 == 0, "a lane a piece, whole swizzled groups of rows");
constexpr int kNoPage = 1 << 30;  // beyond all pages: such copies read zeros

// The number of the lane's piece of a key tile. If there is one, it is that of all lanes, since any of them may copy it.
__device__ __forceinline__ int lane_piece() { return kPieces == 1 ? 0 : static_cast<int>(threadIdx.x % 32); }

// The position of that piece: its page, or its batch.
__device__ __forceinline__ int page_of_piece(const ForwardParams& params, int b, int kv_tile) {
#if FL_PAGE_SIZE
  const int piece = lane_piece();
  const int kv = kv_tile * FL_BLOCK_N + piece * kPieceKeys;
  return piece < kPieces && kv < params.kv_len ? page_of_key(params, b, kv) : kNoPage;
#else
  return b;
#endif
}

// `policy`: none, or an L2 cache hint.
template <int kBoxes, typename... Policy>
__device__ __forceinline__ void load_pieces(u32 destination, const TensorMap& map, u32 barrier, int kv_tile,
                                            int kv_head, int page, Policy... policy) {
  const int piece = lane_piece();
  if (kPieces == 1 ? elect_one() : piece < kPieces) {
    const int row = row_of_key(kv_tile * FL_BLOCK_N + piece * kPieceKeys);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      load_box(destination + box * kKvBoxBytes + piece * kPieceKeys * 128, map, barrier, box * 64, row, kv_head, page,
               policy...);
    }
  }
}

}  // namespace flashlift::cuda
