// From the online softmax's state to the output row.
#pragma once

#include "cpu/forward_tile.h"

namespace flashlift::cpu {

// Neighbouring rows of a head and their accumulated outputs, `stride` floats apart, as one task or the combination of
// several leaves them.
struct FinishedRows {
  int64_t b;
  int64_t g;
  int64_t h;
  int64_t q;
  int64_t count;
  const RowState* states;
  const float* accumulated;
  int64_t stride;
};

// Applies sinks, normalisation and the rule for empty rows, and writes out, lse and row maxima. `scratch` holds a row.
void finish_rows(const ForwardCall& call, const FinishedRows& rows, float* scratch);

// Puts the partial results of one group of rows together, in the order of their keys. `task` is any of its splits;
// `task_stride` the floats between two of them.
void combine_splits(const ForwardCall& call, const Task& task, const float* partials, int64_t task_stride,
                    int64_t splits, const TileLayout& layout, const WorkerMemory& memory);

}  // namespace flashlift::cpu
