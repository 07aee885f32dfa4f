// One form for all programs that differ only in names and order: the basis of cache keys.
#pragma once

#include <string>
#include <vector>

#include "score/simplify.h"

namespace flashlift::score {

// Nodes in the order of a depth-first walk from the result: simplified programs that differ in the order of their nodes
// become the same.
Program order_nodes(const Program& program);

// Nodes in the order of a depth-first walk from the result, captured tensors named c0, c1, ... in the
// order in which that walk meets them. `names` takes what they were called, in that order.
Program canonicalize(const SimplifiedProgram& program, std::vector<std::string>* names = nullptr);

}  // namespace flashlift::score
