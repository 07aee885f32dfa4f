// Progress of loops that may take minutes: those of the oracle and of eager maths.
#pragma once

#include <functional>

namespace flashlift::problem {

// Called after each query's row of a slow loop, to report progress. May be empty.
using RowDone = std::function<void()>;

}  // namespace flashlift::problem
