// Checks a call's result: runs the oracle and same-dtype eager maths, and judges each tensor against them. Both visit
// all rows, so that row_done is called twice for each row.
#pragma once

#include "flashlift/backward.h"
#include "flashlift/problem.h"
#include "problem/eager.h"
#include "problem/eager_backward.h"
#include "problem/judge.h"
#include "problem/oracle.h"
#include "problem/oracle_backward.h"

namespace flashlift::problem {

// Judges arguments.out, and lse and row maxima if the problem requests them. These two are f32 for any dtype: each may
// have a relative error of 1e-4, and a larger one only as far as a score_mod's steps explain it
// (problem/score_steps.h). The report is of the output unless another tensor fails. Errors: as run_oracle.
Result<Judgement> check_output(const Problem& problem, const AttentionArguments& arguments,
                               const RowDone& row_done = nullptr);

// Judges every gradient that the arguments request, and reports the one that is nearest to its limit or furthest beyond
// it. A gradient's terms may cancel, even exactly so in eager maths: the f32 rounding of the terms is therefore allowed
// for any dtype. Where the oracle's gradient is finite, ours must be finite, too, unless eager's is not, because f32
// cannot represent the terms. Errors: as run_oracle_backward.
Result<Judgement> check_gradients(const Problem& problem, const BackwardArguments& arguments,
                                  const RowDone& row_done = nullptr);

// The two steps of the checks, for several results of the same inputs.
struct OutputReference {
  OracleResult want;
  EagerResult eager;
  // The sums of the magnitudes of each output's terms, if an output row is one number (values of depth 1, or along a
  // stride of 0). A single number may be a sum that cancels, whereas a row of many numbers hardly ever cancels in all
  // of them. Empty otherwise.
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
