// The fp64 oracle's backward: the gradients of attention from its definition, recomputed in double precision.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "problem/gradient_parts.h"
#include "problem/row_done.h"

namespace flashlift::problem {

struct OracleCotangents {
  TensorView out;                 // like arguments.out: f32, bf16 or f16 [batch, q_heads, q_len, value_dim]
  std::optional<TensorView> lse;  // f32 [batch, q_heads, q_len]
};

// All dense, in the logical order of the arguments.
struct OracleGradients {
  std::vector<double> q;
  std::vector<double> k;
  std::vector<double> v;
  // One for each of problem.captures, with its logical shape, so that the elements of a broadcast dimension have
  // gradients of their own; empty if score_mod reads no float from it.
  std::vector<std::vector<double>> captures;
  std::vector<double> sinks;  // like the sinks: [q_heads, n], or [n] for all heads
  // The same, split by rows, for judging eager maths.
  std::vector<GradientParts> capture_parts;
  GradientParts sink_parts;
};

// Checks that the problem has a backward pass, and that arguments and cotangents match it.
Status verify_cotangents(const Problem& problem, const AttentionArguments& arguments,
                         const OracleCotangents& cotangents);

// Rows without a key have no gradients, except that `uniform` ones pass that of their mean on to v. A masked key has no
// effect, whatever its value. Errors: those of verify_cotangents.
Result<OracleGradients> run_oracle_backward(const Problem& problem, const AttentionArguments& arguments,
                                            const OracleCotangents& cotangents, const RowDone& row_done = nullptr);

}  // namespace flashlift::problem
