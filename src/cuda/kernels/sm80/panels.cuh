// Tiles of 16-bit elements in shared memory, and how they are loaded. A tile consists of panels of 64 columns, whose
// rows are 128 bytes, and panels of 32 and of 16 columns for the remaining columns. Within a panel the 16-byte chunks
// of a row are exchanged such that the same chunk of any eight rows, which is what a matrix load reads at once, lies in
// different banks. Padding would have the same effect, but take memory from other blocks.
#pragma once

#include "cuda/kernels/common/keys.cuh"
#include "cuda/kernels/sm80/ptx.cuh"

namespace flashlift::cuda {

constexpr u32 kChunkElements = 8;

// Hides a value from the compiler. Otherwise the compiler moves computations with it out of a loop, where their results
// occupy registers that the products need.
__device__ __forceinline__ u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Byte offset of a chunk in a panel of kWidth columns.
template <int kWidth>
__device__ __forceinline__ u32 chunk_offset(u32 row, u32 chunk) {
  constexpr u32 kChunks = kWidth / kChunkElements;
  constexpr u32 kRowsOfBanks = 64 / kWidth;
  return row * kWidth * 2 + (chunk ^ row / kRowsOfBanks % kChunks) * 16;
}

// kRows rows, a multiple of 8, of kColumns columns, a multiple of 16. The first byte is at a multiple of 128.
template <int kTileRows, int kTileColumns>
struct PanelTile {
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kBytes = kRows * kColumns * 2;
  static constexpr int kWide = kColumns / 64;        // panels of 64 columns
  static constexpr int kHalf = kColumns % 64 / 32;   // of 32
  static constexpr int kQuarter = kColumns % 32 / 16;  // of 16
  static constexpr int kHalfOffset = kWide * kRows * 128;
  static constexpr int kQuarterOffset = kHalfOffset + kHalf * kRows * 64;

  // Where a lane's row of its matrix lies in the first 16 columns of each panel.
  struct Lane {
    u32 wide, half, quarter;
  };

  // chunk: 0 or 1
  static __device__ __forceinline__ Lane lane(u32 tile, int row, int chunk) {
    return {tile + chunk_offset<64>(row, chunk), tile + kHalfOffset + chunk_offset<32>(row, chunk),
            tile + kQuarterOffset + chunk_offset<16>(row, chunk)};
  }

  static __device__ __forceinline__ Lane shifted(const Lane& lane, int bytes) {
    return {lane.wide + bytes, lane.half + bytes, lane.quarter + bytes};
  }

  // The same `row` rows, a multiple of 8, and `column` columns, a multiple of 16, further on.
  static __device__ __forceinline__ u32 address(const Lane& lane, int row, int column) {
    if (column < kWide * 64) {
      return (lane.wide ^ (column % 64 * 2)) + (column / 64 * kRows + row) * 128;
    }
    if (kHalf != 0 && column < kWide * 64 + 32) {
      return (lane.half ^ (column % 32 * 2)) + row * 64;
    }
    return lane.quarter + row * 32;
  }

  static __device__ __forceinline__ u32 element(u32 tile, int row, int column) {
    u32 chunk;
    if (column < kWide * 64) {
      chunk = column / 64 * (kRows * 128) + chunk_offset<64>(row, column % 64 / kChunkElements);
    } else if (kHalf != 0 && column < kWide * 64 + 32) {
      chunk = kHalfOffset + chunk_offset<32>(row, column % 32 / kChunkElements);
    } else {
      chunk = kQuarterOffset + chunk_offset<16>(row, column % 16 / kChunkElements);
    }
    return tile + chunk + column % kChunkElements * 2;
  }
};

// Rows of a tensor: `first` is the tile's first row, if rows are a constant apart.
struct TileRows {
  const InputElement* first;
  long long row_stride;
  long long column_stride;
  int rows;     // the number of existing rows
  int columns;  // the number of existing columns
  bool vectors;  // whether rows are contiguous, at multiples of 16 bytes
};

// Copies one panel. kWhole: whether all its rows and columns exist. row_at(r): the start of a row, for rows that are
// not a constant apart.
template <int kThreads, int kRows, int kWidth, bool kWhole, bool kPaged, typename RowAt>
__device__ __forceinline__ void copy_panel(u32 panel, const TileRows& from, int first_column, const RowAt& row_at) {
  constexpr int kChunks = kWidth / kChunkElements;
  constexpr int kStep = kThreads / kChunks;  // rows that all threads copy at once
  constexpr int kCopies = (kRows + kStep - 1) / kStep;
  const u32 thread = opaque(threadIdx.x);
  const int row = static_cast<int>(thread / kChunks);
  const int chunk = static_cast<int>(thread % kChunks);
  const int column = first_column + chunk * kChunkElements;
  const bool column_inside = kWhole || column < from.columns;
  const InputElement* sources[kCopies];
  const InputElement* source = from.first + row * from.row_stride + column;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    if constexpr (kPaged) {  // looks up all pages first, so that it takes the time of one lookup
      const int r = row + i * kStep;
      sources[i] = row_at(kWhole || r < from.rows ? r : 0) + column;
    } else {
      sources[i] = source;
      source += kStep * from.row_stride;
    }
  }
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int r = row + i * kStep;
    if (kRows % kStep != 0 && r >= kRows) {
      break;
    }
    const u32 destination = panel + chunk_offset<kWidth>(thread / kChunks + i * kStep, chunk);
    if (kWhole) {
      copy_async(destination, sources[i]);
    } else {
      // Nothing is read outside the tensor, but the address must be valid all the same.
      const bool inside = column_inside && r < from.rows;
      copy_async(destination, inside ? sources[i] : from.first, inside);
    }
  }
}

template <int kThreads, int kRows, int kColumns, bool kWhole, bool kPaged, typename RowAt>
__device__ __forceinline__ void copy_panels(u32 tile, const TileRows& from, const RowAt& row_at) {
  using Tile = PanelTile<kRows, kColumns>;
#pragma unroll
  for (int panel = 0; panel < Tile::kWide; ++panel) {
    copy_panel<kThreads, kRows, 64, kWhole, kPaged>(tile + panel * kRows * 128, from, panel * 64, row_at);
  }
  if (Tile::kHalf != 0) {
    copy_panel<kThreads, kRows, 32, kWhole, kPaged>(tile + Tile::kHalfOffset, from, Tile::kWide * 64, row_at);
  }
  if (Tile::kQuarter != 0) {
    copy_panel<kThreads, kRows, 16, kWhole, kPaged>(tile + Tile::kQuarterOffset, from,
                                                    Tile::kWide * 64 + Tile::kHalf * 32, row_at);
  }
}

// All threads of a block copy what exists of a tile, and zeros outside the tensor: a padded column must not bring NaN
// into a product.
template <int kThreads, int kRows, int kColumns, bool kPaged, typename RowAt>
__device__ __forceinline__ void copy_part(u32 tile, const TileRows& from, const RowAt& row_at) {
  if (from.vectors) {
    copy_panels<kThreads, kRows, kColumns, false, kPaged>(tile, from, row_at);
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int r = i / kColumns;
    const int c = i % kColumns;
    const bool inside = r < from.rows && c < from.columns;
    const InputElement* row = from.first + r * from.row_stride;
    if constexpr (kPaged) {
      row = row_at(inside ? r : 0);
    }
    const InputElement x = inside ? row[c * from.column_stride] : InputElement(0);
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(PanelTile<kRows, kColumns>::element(tile, r, c)), "h"(x) : "memory");
  }
}

template <int kThreads, int kRows, int kColumns>
__device__ __forceinline__ void copy_tile(u32 tile, const TileRows& from) {
  const auto no_row = [](int) { return nullptr; };
  if (from.vectors && from.rows >= kRows && from.columns == kColumns) {
    copy_panels<kThreads, kRows, kColumns, true, false>(tile, from, no_row);
  } else {
    copy_part<kThreads, kRows, kColumns, false>(tile, from, no_row);
  }
}

// The keys or the values of a head.
struct HeadRows {
  const void* tensor;
  const Strides& strides;
  int columns;
  bool vectors;  // as in TileRows
  int b, kv_head;

  // The row of key 0, if keys are not in pages.
  __device__ __forceinline__ const InputElement* first(const ForwardParams& params) const {
    return FL_PAGE_SIZE ? nullptr : key_row(tensor, strides, params, b, kv_head, 0);
  }
};

// A function of its own: inlined, this rare code would lie between the instructions of every round.
template <int kThreads, int kRows, int kColumns>
__device__ __noinline__ void copy_part_of_keys(u32 tile, const void* tensor, const Strides& strides, int columns,
                                               bool vectors, const ForwardParams& params, int b, int kv_head, int kv) {
  const auto row_at = [&](int r) { return key_row(tensor, strides, params, b, kv_head, kv + r); };
  const TileRows from = {FL_PAGE_SIZE ? static_cast<const InputElement*>(tensor) : row_at(0),
                         strides.row,
                         strides.column,
                         params.kv_len - kv,
                         columns,
                         vectors};
  copy_part<kThreads, kRows, kColumns, FL_PAGE_SIZE != 0>(tile, from, row_at);
}

// In one instruction; by casts, the compiler would multiply in 64 bits.
__device__ __forceinline__ long long wide_product(int x, int y) {
  long long product;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
}

// Copies kPanels panels of kWidth columns whose rows all exist. first: the row of key 0.
template <int kThreads, int kRows, int kWidth, int kPanels>
__device__ __forceinline__ void copy_whole_panels(u32 panel, const InputElement* first, int row_stride, int kv) {
  constexpr int kChunks = kWidth / kChunkElements;
  constexpr int kStep = kThreads / kChunks;  // rows that all threads copy at once
  const u32 thread = opaque(threadIdx.x);
  const int row = static_cast<int>(thread / kChunks);
  const InputElement* source = first + wide_product(kv + row, row_stride) + thread % kChunks * kChunkElements;
#pragma unroll
  for (int r = 0; r < kRows; r += kStep) {
    if (kRows % kStep != 0 && row + r >= kRows) {
      break;
    }
    const u32 destination = panel + chunk_offset<kWidth>(thread / kChunks + r, thread % kChunks);
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      copy_async(destination + i * kRows * kWidth * 2, source + i * kWidth);
    }
    source += wide_product(kStep, row_stride);
  }
}

// kRows keys or values from `kv` on. first: head.first(params), which a loop need not compute again. Rows that consist
// of vectors are fewer than 2^31 elements apart: with 64 bits, these addresses took a tenth of a round's instructions.
template <int kThreads, int kRows, int kColumns>
__device__ __forceinline__ void copy_keys(u32 tile, const HeadRows& head, const InputElement* first,
                                          const ForwardParams& params, int kv) {
  if (!head.vectors || params.kv_len - kv < kRows || head.columns != kColumns) {
    copy_part_of_keys<kThreads, kRows, kColumns>(tile, head.tensor, head.strides, head.columns, head.vectors, params,
                                                 head.b, head.kv_head, kv);
    return;
  }
#if FL_PAGE_SIZE
  const TileRows from = {first, head.strides.row, 1, kRows, kColumns, true};
  copy_panels<kThreads, kRows, kColumns, true, true>(tile, from, [&](int r) {
    return key_row(head.tensor, head.strides, params, head.b, head.kv_head, kv + r);
  });
#else
  using Tile = PanelTile<kRows, kColumns>;
  const int row_stride = static_cast<int>(head.strides.row);
  if constexpr (Tile::kWide != 0) {
    copy_whole_panels<kThreads, kRows, 64, Tile::kWide>(tile, first, row_stride, kv);
  }
  if constexpr (Tile::kHalf != 0) {
    copy_whole_panels<kThreads, kRows, 32, 1>(tile + Tile::kHalfOffset, first + Tile::kWide * 64, row_stride, kv);
  }
  if constexpr (Tile::kQuarter != 0) {
    copy_whole_panels<kThreads, kRows, 16, 1>(tile + Tile::kQuarterOffset, first + Tile::kWide * 64 + Tile::kHalf * 32,
                                              row_stride, kv);
  }
#endif
}

}  // namespace flashlift::cuda
