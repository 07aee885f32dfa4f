// What came of one randomly drawn problem.
#pragma once

#include <string>

namespace flashlift::testing {

struct DrawnProblem {
  std::string failure;  // empty if all is right; otherwise the problem and what is wrong
  double ratio = 0;     // of the mean error to its bound, the largest of all tensors
};

}  // namespace flashlift::testing
