// Is a call's result right? Runs the oracle and same-dtype eager maths, and judges each tensor beside them. Both go
// through all rows, so that row_done is called twice for each.
#pragma once

#include "flashlift/backward.h"
#include "flashlift/problem.h"
#include "problem/eager.h"
#include "problem/eager_backward.h"
#include "problem/judge.h"
#include "problem/oracle.h"
#include "problem/oracle_backward.h"

namespace flashlift::problem {

// Judges arguments.out, and lse and row maxima if the problem wants them. These two are f32 results whatever the dtype:
// each may be off by 1e-4 of itself, and beyond that only as far as a score_mod's steps explain
// (problem/score_steps.h). The report is of the output unless another tensor fails. Errors: as run_oracle.
Result<Judgement> check_output(const Problem& problem, const AttentionArguments& arguments,
                               const RowDone& row_done = nullptr);

// Judges every gradient that the arguments ask for, and reports the one that is nearest to its limit or the furthest
// beyond it. A gradient's terms may cancel down to nothing, exactly so in eager maths: f32 rounding of the terms is
// allowed, whatever the problem's dtype. Where the oracle's gradient is not finite, neither may ours be; where eager's
// is not, f32 has no room for the terms, and ours need not be. Errors: as run_oracle_backward.
Result<Judgement> check_gradients(const Problem& problem, const BackwardArguments& arguments,
                                  const RowDone& row_done = nullptr);

// The two steps of these, for several results of the same inputs.
struct OutputReference {
  OracleResult want;
  EagerResult eager;
  // What the terms of each output sum to without their signs, where an output row is one number: values of depth 1, or
  // along a stride of 0. One number may cancel down to nothing, as a row of many hardly does. Empty elsewhere.
  std::vector<double> magnitudes;
};
struct GradientReference {
  OracleGradients want;
  EagerGradients eager;
};
Result<OutputReference> compute_reference(const Problem& problem, const AttentionArguments& arguments,
                                          const RowDone& row_done = nullptr);
Result<GradientReference> compute_reference(const Problem& problem, const BackwardArguments& arguments,
                                            const RowDone& row_done = nullptr);
Judgement check_output(const Problem& problem, const AttentionArguments& arguments, const OutputReference& reference);
Judgement check_gradients(const Problem& problem, const BackwardArguments& arguments,
                          const GradientReference& reference);

}  // namespace flashlift::problem
