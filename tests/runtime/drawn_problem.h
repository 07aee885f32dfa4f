// The result of one randomly drawn problem.
#pragma once

#include <string>

#include "flashlift/attention.h"
#include "problem/judge.h"

namespace flashlift::testing {

struct DrawnProblem {
  std::string failure;           // empty if all is right; otherwise the problem and the failure
  problem::Judgement judgement;  // of the tensor that came closest to its limits
};

struct DrawOptions {
  std::string
      bf16_implementation;  // for problems that products of bf16 operands can compute; empty: the default choice

  CompileOptions compile_options(const Problem& problem) const {
    const bool is_taken = problem.dtype == DType::kBF16 && !problem.drops_keys();
    return {.implementation = is_taken ? bf16_implementation : std::string()};
  }
};

}  // namespace flashlift::testing
