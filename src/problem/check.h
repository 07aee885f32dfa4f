// Is a result right? The one error bound that tests, the command line and benchmarks share.
#pragma once

#include <string>

#include "flashlift/backward.h"
#include "flashlift/problem.h"

namespace flashlift::problem {

struct CheckReport {
  std::string tensor;     // which one this is about
  double mean_error = 0;  // against the fp64 oracle
  double max_error = 0;
  double eager_error = 0;  // mean error of same-dtype eager maths
  double bound = 0;        // what mean_error may be
  bool ok = false;
  std::string reason;  // why not
};

// Compares arguments.out (and lse and row maxima, if the problem wants them) with the oracle. The mean error may be 1.1
// times that of eager maths in the same dtype, plus what chance and the output's own rounding do to the mean of few
// rows and elements. Of lse and row maxima every row may besides be off by 1e-4 of itself. NaN and infinities must
// stand exactly where the oracle has them. Errors: as run_oracle.
Result<CheckReport> check_output(const Problem& problem, const AttentionArguments& arguments);

// Compares every gradient that the arguments ask for likewise, and reports the one that is nearest to its bound or the
// furthest beyond it. Besides, a gradient's terms may cancel down to nothing, exactly so in eager maths: f32 rounding
// of the terms is allowed, whatever the problem's dtype. Where the oracle's gradient is not finite, neither may ours
// be; where eager's is not, f32 has no room for the terms, and ours need not be. Errors: as run_oracle_backward.
Result<CheckReport> check_gradients(const Problem& problem, const BackwardArguments& arguments);

}  // namespace flashlift::problem
