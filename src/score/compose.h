// Builds programs from programs. The results are not simplified, so that a program built from them is simplified only
// once.
#pragma once

#include "flashlift/program.h"
#include "flashlift/result.h"

namespace flashlift::score {

// outer(inner(score)): two score_mods, the inner one first. Captured tensors of the same name are the same tensor.
// Errors: both declare a captured tensor of one name differently.
Result<Program> compose(const Program& outer, const Program& inner);

// The mask_mod that keeps keys that both keep.
Result<Program> conjunction(const Program& left, const Program& right);
// The mask_mod that keeps keys that at least one of them keeps.
Result<Program> disjunction(const Program& left, const Program& right);

}  // namespace flashlift::score
