// Dropout on a CPU: which probabilities stay. docs/problem.md defines it.
#pragma once

#include "cpu/tile/kernels.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

Dropout dropout_of(const Problem& problem, const AttentionArguments& arguments);

// One key at a time, for rows too rare to be worth vectors.
bool keeps(const Dropout& dropout, const DropoutRow& row, int64_t kv);

}  // namespace flashlift::cpu
