// The preprocess of the backward pass, for all main kernels: the bounds of captured tensors' blocks, d_out in the
// inputs' type, and the row statistics that follow from the forward pass's output.
#include "bounds.cuh"
#include "cuda/kernels/common/captures.cuh"
#include "cuda/kernels/common/rows.cuh"
#if !FL_OUT_F32
#include "cuda/kernels/common/residual.cuh"
#endif

namespace flashlift::cuda {
namespace {

#if FL_OUT_F32
using OutElement = ElementF32;
#elif FL_OUT_BF16
using OutElement = ElementBF16;
#else
using OutElement = ElementF16;
#endif

#if FL_D_OUT_F32
using DOutElement = ElementF32;
#elif FL_D_OUT_BF16
using DOutElement = ElementBF16;
#else
using DOutElement = ElementF16;
#endif

}  // namespace

#if FL_D_OUT_CONVERTED
// d_out in the inputs' type, which the products need. If this would round it, it becomes the sum of two numbers, since
// the output's type was chosen to avoid such an error. One element per thread.
extern "C" __global__ void flashlift_convert_d_out(const __grid_constant__ ForwardParams params,
                                                   const __grid_constant__ BackwardParams backward) {
  const long long count = static_cast<long long>(params.batch) * params.q_heads * params.q_len * FL_VALUE_DIM;
  const Strides& from = backward.given_d_out_strides;
  const Strides& to = backward.d_out_strides;
  InputElement* const converted = static_cast<InputElement*>(const_cast<void*>(backward.d_out));
  bool any_low = false;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int column = static_cast<int>(i % FL_VALUE_DIM);
    const long long row_index = i / FL_VALUE_DIM;
    const int row = static_cast<int>(row_index % params.q_len);
    const long long head_index = row_index / params.q_len;
    const int h = static_cast<int>(head_index % params.q_heads);
    const long long b = head_index / params.q_heads;
    const float x = DOutElement::scalar(static_cast<const DOutElement::Bits*>(
        backward.given_d_out)[b * from.batch + h * from.head + row * from.row + column * from.column]);
    const long long at = b * to.batch + h * to.head + row * to.row + column;
#if FL_D_OUT_HALVES
    const auto half = [](float value) { return static_cast<InputElement>(pack_half(value, 0.0f)); };
    const InputElement high = half(x);
    const float rest = x - to_float(high);
    // What is not finite has no rest.
    const InputElement low = fabsf(rest) < FL_INFINITY ? half(rest) : InputElement(0);
    converted[at] = high;
    static_cast<InputElement*>(backward.d_out_low)[at] = low;
    any_low |= (low & 0x7fff) != 0;
#else
    converted[at] = x;
#endif
  }
  if (__syncthreads_or(any_low) && threadIdx.x == 0) {
    atomicOr(backward.d_out_has_low, 1);
  }
}
#endif

#if FL_ROW_TILES
namespace {

// Elements that a thread reads at once: 16 bytes of out. FL_ROW_THREADS threads share a row: a power of two, at most a
// warp. Each has FL_ROWS_OF_THREAD rows of one tile, since the instructions that find a row are many beside those that
// sum it, and the loads of the next rows are on their way meanwhile.
constexpr int kPiece = 16 / static_cast<int>(sizeof(OutElement::Bits));
constexpr int kPieces = (FL_VALUE_DIM + FL_ROW_THREADS * kPiece - 1) / (FL_ROW_THREADS * kPiece);  // of a thread's row
constexpr bool kWholePieces = FL_VALUE_DIM % (FL_ROW_THREADS * kPiece) == 0;
constexpr int kRows = FL_ROWS_OF_THREAD;
constexpr int kRowsApart = 256 / FL_ROW_THREADS;
static_assert(kRows <= FL_ROW_THREADS, "a thread finishes one row");

template <int kBytes>
struct VectorOf {
  using Type = uint4;
};
template <>
struct VectorOf<8> {
  using Type = uint2;
};

// As many elements of another tensor.
template <typename Bits>
struct Piece {
  static constexpr int kBytes = kPiece * static_cast<int>(sizeof(Bits));
  using Vector = typename VectorOf<kBytes>::Type;
  static constexpr int kVectors = kBytes / static_cast<int>(sizeof(Vector));
  union {
    Vector vectors[kVectors];
    Bits elements[kPiece];
  };
};

// kOnce: nothing reads them later, so that the L2 cache may keep d_out, which the products read.
template <bool kOnce, typename Bits>
__device__ __forceinline__ void load_piece(Piece<Bits>& piece, const Bits* row, int column) {
  using Vector = typename Piece<Bits>::Vector;
#pragma unroll
  for (int i = 0; i < Piece<Bits>::kVectors; ++i) {
    const Vector* const from = reinterpret_cast<const Vector*>(row + column) + i;
    piece.vectors[i] = kOnce ? __ldcs(from) : __ldg(from);
  }
}

using OutBits = OutElement::Bits;
using DOutBits = DOutElement::Bits;

// A thread's rows: the first one, and kRows - 1 more, kRowsApart after each other.
struct TileRows {
  unsigned tile;  // among those of all heads
  int within;     // the tile
  int b, h, q;
  int count;  // that exist
};

// Tiles have a power of two of rows.
__device__ __forceinline__ TileRows rows_of_thread(const ForwardParams& params, const RowTiles& tiles) {
  const unsigned long long index = static_cast<unsigned long long>(blockIdx.x) * (kRows * kRowsApart) +
                                   threadIdx.x / FL_ROW_THREADS;
  const auto tile = static_cast<unsigned>(index >> (__ffs(tiles.rows) - 1));
  const int within = static_cast<int>(index) & (tiles.rows - 1);
  const int head = static_cast<int>(tile / static_cast<unsigned>(tiles.tiles));
  const int q = static_cast<int>(tile % static_cast<unsigned>(tiles.tiles)) * tiles.rows + within;
  const int b = head / params.q_heads;
  const int after = b < params.batch ? params.q_len - q : 0;
  return {tile, within, b, head % params.q_heads, q, min(max((after + kRowsApart - 1) / kRowsApart, 0), kRows)};
}

// This thread's share of <d_out, out> of each row. There is at least one.
__device__ __forceinline__ void sum_products(const ForwardParams& params, const BackwardParams& backward,
                                             const RowTiles& tiles, const TileRows& rows, float (&sums)[kRows]) {
  const Strides& strides = params.out_strides;
  const Strides& d_out_strides = backward.given_d_out_strides;
  const long long at = rows.b * strides.batch + rows.h * strides.head + rows.q * strides.row;
  const OutBits* const out = static_cast<const OutBits*>(params.out) + at;
#if !FL_OUT_F32
  const signed char* const residual = static_cast<const signed char*>(tiles.out_residual) + at;
  const bool has_residual = tiles.out_residual != nullptr;
#endif
  const DOutBits* const d_out = static_cast<const DOutBits*>(backward.given_d_out) + rows.b * d_out_strides.batch +
                                rows.h * d_out_strides.head + rows.q * d_out_strides.row;
  const int lane = static_cast<int>(threadIdx.x) % FL_ROW_THREADS;
  if (!tiles.vector_out) {
#pragma unroll 1
    for (int i = 0; i < rows.count; ++i) {
      float sum = 0.0f;
#pragma unroll 1
      for (int column = lane; column < FL_VALUE_DIM; column += FL_ROW_THREADS) {
        const long long offset = i * kRowsApart * strides.row + column * strides.column;
        const float y =
            DOutElement::scalar(d_out[i * kRowsApart * d_out_strides.row + column * d_out_strides.column]);
#if FL_OUT_F32
        const float x = out[offset];
#else
        const float x = unrounded(out[offset], has_residual ? static_cast<unsigned char>(residual[offset]) : 0, 0);
#endif
        sum = fmaf(x, y, sum);
      }
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        sums[j] = i == j ? sum : sums[j];
      }
    }
    return;
  }
  // Without branches, behind which each row's loads would be waited for: what does not exist reads what does.
  Piece<OutBits> x[kRows][kPieces];
  Piece<DOutBits> y[kRows][kPieces];
  int columns[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = (j * FL_ROW_THREADS + lane) * kPiece;
    columns[j] = kWholePieces || column < FL_VALUE_DIM ? column : 0;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = min(i, rows.count - 1) * kRowsApart;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      load_piece<true>(x[i][j], out + row * strides.row, columns[j]);
      load_piece<false>(y[i][j], d_out + row * d_out_strides.row, columns[j]);
    }
  }
#if !FL_OUT_F32
  Piece<signed char> rest[kRows][kPieces] = {};
  if (has_residual) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = min(i, rows.count - 1) * kRowsApart;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        load_piece<true>(rest[i][j], residual + row * strides.row, columns[j]);
      }
    }
  }
#endif
  const auto factor = [&](int i, int j, int e) {
#if FL_OUT_F32
    return x[i][j].elements[e];
#else
    const uint2 eight = rest[i][j].vectors[0];
    return unrounded(x[i][j].elements[e], e < 4 ? eight.x : eight.y, e % 4);
#endif
  };
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      float sum = 0.0f;
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        sum = fmaf(factor(i, j, e), DOutElement::scalar(y[i][j].elements[e]), sum);
      }
      const bool exists = kWholePieces || (j * FL_ROW_THREADS + lane) * kPiece < FL_VALUE_DIM;
      sums[i] += exists ? sum : 0.0f;
    }
  }
}

}  // namespace

// Fills RowTiles::statistics, clears what the fused kernels count with, and finds the bounds of captured tensors.
extern "C" __global__ void __launch_bounds__(256)
    flashlift_row_tiles(const __grid_constant__ ForwardParams params, const __grid_constant__ BackwardParams backward,
                        const __grid_constant__ RowTiles tiles
#if FL_BOUNDS_COUNT > 0
                        ,
                        const __grid_constant__ BoundsArguments bounds
#endif
    ) {
#if FL_BOUNDS_COUNT > 0
  find_bounds(bounds);
#endif
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < tiles.cleared;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    tiles.next_block[i] = 0;
  }
  const TileRows rows = rows_of_thread(params, tiles);
  const int lane = static_cast<int>(threadIdx.x) % FL_ROW_THREADS;  // and the row that this thread finishes
  const int q = rows.q + lane * kRowsApart;
  const bool exists = lane < rows.count;
  const float given = exists ? params.lse[rows.b * params.lse_strides[0] + rows.h * params.lse_strides[1] +
                                          q * params.lse_strides[2]]
                             : -FL_INFINITY;
  float sums[kRows] = {};
  if (rows.count > 0) {
    sum_products(params, backward, tiles, rows, sums);  // whatever lse is: its load is not waited for
  }
  float delta = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int step = FL_ROW_THREADS / 2; step > 0; step /= 2) {
      sums[i] += __shfl_xor_sync(0xffffffff, sums[i], step, FL_ROW_THREADS);
    }
    delta = lane == i ? sums[i] : delta;
  }
  if (rows.b >= params.batch || lane >= kRows) {
    return;
  }
  float lse = FL_INFINITY;
  if (given != -FL_INFINITY) {
    lse = given == FL_INFINITY ? FL_NAN : given * kExponentUnit;  // an infinite score makes its row NaN
    // (Scaled, it may be infinite, as that of a row without keys.)
    const bool large = fabsf(given) < FL_INFINITY && fabsf(lse) > kLargestOffset;
    if (large || (FL_HIDES_EMPTY_ROWS && given != given)) {
      *tiles.any_large = 1;
    }
  } else if (exists) {
    *tiles.any_empty = 1;
  }
  float* const statistics =
      tiles.statistics + static_cast<long long>(rows.tile) * 2 * tiles.rows + rows.within + lane * kRowsApart;
  statistics[0] = lse;
  statistics[tiles.rows] = lse < FL_INFINITY ? delta - d_lse_at(backward, rows.b, rows.h, q) : 0.0f;
}
#endif

}  // namespace flashlift::cuda
