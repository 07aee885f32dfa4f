// A canonical form for programs that differ only in names and order: the basis of cache keys.
#pragma once

#include <string>
#include <vector>

#include "score/simplify.h"

namespace flashlift::score {

// Orders nodes by a depth-first walk from the result, so that simplified programs that differ only in the order of
// their nodes become equal.
Program order_nodes(const Program& program);

// Orders nodes by a depth-first walk from the result, and names captured tensors c0, c1, ... in the order of that walk.
// `names` receives their original names in this order.
Program canonicalize(const SimplifiedProgram& program, std::vector<std::string>* names = nullptr);

}  // namespace flashlift::score
