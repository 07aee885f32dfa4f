// Is a result right? The one error bound that tests, the command line and benchmarks share.
#pragma once

#include <string>

#include "flashlift/problem.h"

namespace flashlift::problem {

struct CheckReport {
  double mean_error = 0;  // of the output against the fp64 oracle
  double max_error = 0;
  double eager_error = 0;  // mean error of same-dtype eager maths
  double bound = 0;        // what mean_error may be
  bool ok = false;
  std::string reason;  // why not
};

// Compares arguments.out (and lse, if the problem wants it) with the oracle. The mean error may be 1.1 times that of
// eager maths in the same dtype, plus what chance and the output's own rounding do to the mean of few rows and
// elements. NaN and infinities must stand exactly where the oracle has them. Errors: as run_oracle.
Result<CheckReport> check_output(const Problem& problem, const AttentionArguments& arguments);

}  // namespace flashlift::problem
