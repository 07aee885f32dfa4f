// Rewrites score programs to smaller equivalent ones.
#pragma once

#include <span>

#include "flashlift/program.h"

namespace flashlift::score {

// Folds constants (in f32), applies identities that hold for every input (NaN and infinities included), shares equal
// nodes, and drops dead nodes and captured tensors that are no longer read. The result computes the same values.
Program simplify(const Program& program);
// The same for a program with several results: `results` are kept like program.result, and replaced by their new ids.
Program simplify(const Program& program, std::span<ValueId> results);

// A program in the form that simplify() returns. Functions that need this form take this type, so that a program is
// simplified only once.
class SimplifiedProgram {
 public:
  explicit SimplifiedProgram(const Program& program) : program_(simplify(program)) {}

  const Program& operator*() const { return program_; }
  const Program* operator->() const { return &program_; }

 private:
  Program program_;
};

// Puts the operands of a commutative operation into a fixed order (by their numbers among `nodes`, constants last), so
// that equivalent programs become equal.
void order_operands(Node& node, std::span<const Node> nodes);

// Whether the program's result is this constant everywhere.
bool is_constant(const Program& program, int64_t payload);
// Whether this is the score_mod that returns its score, or the mask_mod that keeps everything.
bool is_identity(const Program& program);

}  // namespace flashlift::score
