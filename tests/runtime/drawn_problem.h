// What came of one randomly drawn problem.
#pragma once

#include <string>

#include "problem/judge.h"

namespace flashlift::testing {

struct DrawnProblem {
  std::string failure;           // empty if all is right; otherwise the problem and what is wrong
  problem::Judgement judgement;  // of the tensor that came nearest to its limits
};

}  // namespace flashlift::testing
