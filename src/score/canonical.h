// One form for all programs that differ only in names and order: the basis of cache keys.
#pragma once

#include <string>

#include "flashlift/program.h"

namespace flashlift::score {

// Simplified, nodes in the order of a depth-first walk from the result, captured tensors named c0, c1, ... in the
// order in which that walk meets them.
Program canonicalize(const Program& program);

// Equal for programs with equal canonical forms.
std::string canonical_hash(const Program& program);

}  // namespace flashlift::score
