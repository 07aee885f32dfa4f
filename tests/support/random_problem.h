// Random attention problems: every shape, dtype, layout, head grouping, score and mask program, captured tensor, sink
// and rule for empty rows that a problem allows, small enough for the oracle.
#pragma once

#include "flashlift/problem.h"
#include "support/tensors.h"

namespace flashlift::testing {

// Returns the same problem for the same state of `random`. The problem always passes verify().
//
// Programs are drawn so that the fp64 oracle and f32 arithmetic must agree: integers, indices and masks are arbitrary,
// but a value with rounding errors never decides a branch or becomes an integer, and scores stay in a range where
// e^score is meaningful.
Problem draw_problem(Random& random);

// A score_mod or mask_mod for problems of these sizes. `captures` names tensors that it may read, besides new ones.
Program draw_program(ProgramKind kind, const Problem& sizes, Random& random);

}  // namespace flashlift::testing
