// Building programs from programs. Results are not simplified: what is built of them may be, once.
#pragma once

#include "flashlift/program.h"
#include "flashlift/result.h"

namespace flashlift::score {

// outer(inner(score)): two score_mods, the inner one first. Captured tensors of the same name are the same tensor.
// Errors: both declare a captured tensor of one name differently.
Result<Program> compose(const Program& outer, const Program& inner);

// The mask_mod that keeps what both keep.
Result<Program> conjunction(const Program& left, const Program& right);
// The mask_mod that keeps what one of them keeps.
Result<Program> disjunction(const Program& left, const Program& right);

}  // namespace flashlift::score
