// Computes the output rows from the state of the online softmax.
#pragma once

#include "cpu/forward_tile.h"

namespace flashlift::cpu {

// Neighbouring rows of a head and their accumulated outputs, `stride` floats apart, from one task or the combination of
// several.
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

// Combines the partial results of one group of rows, in the order of their keys. `task` is any of its splits;
// `task_stride` is the distance between two splits in floats.
void combine_splits(const ForwardCall& call, const Task& task, const float* partials, int64_t task_stride,
                    int64_t splits, const TileLayout& layout, const WorkerMemory& memory);

}  // namespace flashlift::cpu
