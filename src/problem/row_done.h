#pragma once

#include <functional>

namespace flashlift::problem {

// Called after each query's row of a slow loop, so that somebody can be told how far it is. May be empty.
using RowDone = std::function<void()>;

}  // namespace flashlift::problem
