// From the online softmax's state to the output row.
#pragma once

#include "cpu/forward_tile.h"

namespace flashlift::cpu {

// A row's accumulated output, as one task or the combination of several leaves it.
struct FinishedRow {
  int64_t b;
  int64_t g;
  int64_t h;
  int64_t q;
  RowState state;
  const float* accumulated;
};

// Applies sinks, normalisation and the rule for empty rows, and writes out and lse. `scratch` holds a row.
void finish_row(const ForwardCall& call, const FinishedRow& row, float* scratch);

}  // namespace flashlift::cpu
