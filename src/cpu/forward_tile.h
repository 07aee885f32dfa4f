// The flash-attention loop over the keys of one task.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/call_memory.h"
#include "cpu/forward.h"
#include "cpu/partition.h"
#include "visits/visits.h"

namespace flashlift::cpu {

// The number of rows that are classified together as skipped, full or partial: a multiple of the rows of every
// micro-kernel.
inline constexpr int64_t kVisitRows = 48;
inline constexpr int64_t kMaxVisitGroups = ForwardConfig{}.q_tile / kVisitRows;

// A block of keys is a whole number of these for every instruction set, and for dropout's counters.
inline constexpr int64_t kPanelKeys = 64;
inline constexpr int64_t kMostSplits = 64;

// Tasks of up to that many rows multiply keys and values in place, in f32: packing would cost more than it saves. A
// task has all rows of a head group if there are fewer, and many more rows otherwise.
inline constexpr int64_t kDirectRows = 8;

class SharedParts;  // forward_parts.h

// The data that all tasks of one call share.
struct ForwardCall {
  const Forward& kernel;
  const AttentionArguments& arguments;
  CallSizes sizes;
  const visits::Visits& visits;
  const CaptureView* captures;
  Dropout dropout;
  const SharedParts& parts;
};

// The layout of a thread's tile buffers.
struct TileLayout {
  TileLayout(const Forward& kernel, int64_t rows);

  bool direct;       // few rows: keys and values are read in place, in f32
  int64_t q_stride;  // elements in a row of the queries: head_dim, padded as the products need it
  int64_t o_stride;  // floats in a row of the accumulated output: value_dim in whole vectors
  size_t q, k, v, s, o, maxima, state, coordinates, kept, gathered;
  size_t bytes;
};

// The position of key j of batch b in k and v: direct, or through the page table.
struct KeyPlace {
  int64_t batch;
  int64_t row;
};
inline KeyPlace key_place(const AttentionArguments& arguments, int64_t page_size, int64_t b, int64_t j) {
  if (page_size == 0) {
    return {b, j};
  }
  const TensorView& table = *arguments.page_table;
  const int64_t page = static_cast<const int32_t*>(table.data)[b * table.strides[0] + j / page_size * table.strides[1]];
  return {std::clamp<int64_t>(page, 0, arguments.k.sizes[0] - 1), j % page_size};
}

// Floats of a partial result: maximum, sum and divisor (see RowState), and from 16 on the accumulated output.
inline int64_t partial_stride(int64_t o_stride) { return o_stride + 16; }

// The columns of the value panels: whole numbers of vectors of similar size.
struct Panel {
  int64_t begin;
  int vectors;
};
int value_panels(int64_t value_dim, const TileKernels& kernels, Panel (&panels)[32]);

void run_task(const ForwardCall& call, const Task& task, const TileLayout& layout, const WorkerMemory& memory);
// For one split of the keys: leaves a partial_stride() of floats per row instead of the output.
void run_split(const ForwardCall& call, const Task& task, const TileLayout& layout, const WorkerMemory& memory,
               float* partial);

}  // namespace flashlift::cpu
