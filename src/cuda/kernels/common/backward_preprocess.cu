// The preprocess of the backward pass, for all main kernels: the bounds of captured tensors' blocks, d_out in the
// inputs' type, and the row statistics that follow from the forward pass's output.
#include "bounds.cuh"
#include "cuda/kernels/common/captures.cuh"
#include "cuda/kernels/common/rows.cuh"

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
// warp.
constexpr int kPiece = 16 / static_cast<int>(sizeof(OutElement::Bits));

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

// Of one row of out, of its residual or of d_out; `vector`: its pieces are aligned as vectors are. kOnce: nothing reads
// them later, so that the L2 cache may keep d_out, which the products read.
template <bool kOnce, typename Bits>
__device__ __forceinline__ Piece<Bits> load_piece(const Bits* row, long long stride, int column, bool vector) {
  using Vector = typename Piece<Bits>::Vector;
  Piece<Bits> piece;
#pragma unroll
  for (int i = 0; i < Piece<Bits>::kVectors; ++i) {
    piece.vectors[i] = Vector{};
  }
  if (vector) {
#pragma unroll
    for (int i = 0; i < Piece<Bits>::kVectors; ++i) {
      const Vector* const from = reinterpret_cast<const Vector*>(row + column) + i;
      piece.vectors[i] = kOnce ? __ldcs(from) : __ldg(from);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (column + i < FL_VALUE_DIM) {
        piece.elements[i] = row[(column + i) * stride];
      }
    }
  }
  return piece;
}

template <typename Element>
__device__ __forceinline__ const typename Element::Bits* row_of(const void* tensor, const Strides& strides, int b,
                                                                int h, int q) {
  return static_cast<const typename Element::Bits*>(tensor) + b * strides.batch + h * strides.head + q * strides.row;
}

// A row among those of all heads' tiles.
struct RowOfTile {
  unsigned tile;
  int within;
};

// By 32-bit divisions only: those of 64 bits would take longer than the row's memory. Tiles have a power of two of
// rows, as blocks have.
__device__ __forceinline__ RowOfTile row_of_thread(const RowTiles& tiles) {
  constexpr int kRows = 256 / FL_ROW_THREADS;  // of a block
  const int row = static_cast<int>(threadIdx.x) / FL_ROW_THREADS;
  if (kRows > tiles.rows) {
    return {blockIdx.x * static_cast<unsigned>(kRows / tiles.rows) + static_cast<unsigned>(row / tiles.rows),
            row % tiles.rows};
  }
  const unsigned blocks = static_cast<unsigned>(tiles.rows / kRows);  // of a tile
  return {blockIdx.x / blocks, static_cast<int>(blockIdx.x % blocks) * kRows + row};
}

// This thread's share of <d_out, out>.
__device__ __forceinline__ float row_product(const ForwardParams& params, const BackwardParams& backward,
                                             const RowTiles& tiles, int b, int h, int q) {
  const OutElement::Bits* const out = row_of<OutElement>(params.out, params.out_strides, b, h, q);
  const OutElement::Bits* const residual = row_of<OutElement>(tiles.out_residual, params.out_strides, b, h, q);
  const DOutElement::Bits* const d_out =
      row_of<DOutElement>(backward.given_d_out, backward.given_d_out_strides, b, h, q);
  float sum = 0.0f;
#pragma unroll
  for (int column = static_cast<int>(threadIdx.x) % FL_ROW_THREADS * kPiece; column < FL_VALUE_DIM;
       column += FL_ROW_THREADS * kPiece) {
    const Piece<OutElement::Bits> x = load_piece<true>(out, params.out_strides.column, column, tiles.vector_out);
    const Piece<DOutElement::Bits> y =
        load_piece<false>(d_out, backward.given_d_out_strides.column, column, tiles.vector_out);
    Piece<OutElement::Bits> rest;  // all loads come before the first sum
    if (tiles.out_residual != nullptr) {
      rest = load_piece<true>(residual, params.out_strides.column, column, tiles.vector_out);
    }
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      sum = fmaf(OutElement::scalar(x.elements[i]), DOutElement::scalar(y.elements[i]), sum);
    }
    if (tiles.out_residual != nullptr) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        sum = fmaf(OutElement::scalar(rest.elements[i]), DOutElement::scalar(y.elements[i]), sum);
      }
    }
  }
  return sum;
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
  const RowOfTile row = row_of_thread(tiles);
  const int head = static_cast<int>(row.tile / static_cast<unsigned>(tiles.tiles));
  const int q = static_cast<int>(row.tile % static_cast<unsigned>(tiles.tiles)) * tiles.rows + row.within;
  const bool exists = head < params.batch * params.q_heads;
  const int b = head / params.q_heads;
  const int h = head % params.q_heads;
  float lse = FL_INFINITY;
  float delta = 0.0f;
  bool large = false;
  if (exists && q < params.q_len) {
    const float given = params.lse[b * params.lse_strides[0] + h * params.lse_strides[1] + q * params.lse_strides[2]];
    delta = row_product(params, backward, tiles, b, h, q);  // whatever lse is: its load is not waited for
    if (given != -FL_INFINITY) {
      lse = given == FL_INFINITY ? FL_NAN : given * kExponentUnit;  // an infinite score makes its row NaN
      // (Scaled, it may be infinite, as that of a row without keys.)
      large = fabsf(given) < FL_INFINITY && fabsf(lse) > kLargestOffset;
    } else {
      *tiles.any_empty = 1;
    }
  }
#pragma unroll
  for (int step = FL_ROW_THREADS / 2; step > 0; step /= 2) {
    delta += __shfl_xor_sync(0xffffffff, delta, step, FL_ROW_THREADS);
  }
  if (exists && threadIdx.x % FL_ROW_THREADS == 0) {
    float* const tile = tiles.statistics + static_cast<long long>(row.tile) * 2 * tiles.rows;
    tile[row.within] = lse;
    tile[tiles.rows + row.within] = lse < FL_INFINITY ? delta - d_lse_at(backward, b, h, q) : 0.0f;
    if (large) {
      *tiles.any_large = 1;
    }
  }
}
#endif

}  // namespace flashlift::cuda
