// One form for all programs that differ only in names and order: the basis of cache keys.
#pragma once

#include <string>
#include <vector>

#include "flashlift/program.h"

namespace flashlift::score {

// Simplified, nodes in the order of a depth-first walk from the result, captured tensors named c0, c1, ... in the
// order in which that walk meets them. `names` takes what they were called, in that order.
Program canonicalize(const Program& program, std::vector<std::string>* names = nullptr);

// Equal for programs with equal canonical forms.
std::string canonical_hash(const Program& program);

}  // namespace flashlift::score
