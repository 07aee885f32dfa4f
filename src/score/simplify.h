// Rewriting score programs to smaller equal ones.
#pragma once

#include <span>

#include "flashlift/program.h"

namespace flashlift::score {

// Folds constants (in f32), applies identities that hold for every input (NaN and infinities included), shares equal
// nodes, and drops dead nodes and captured tensors that are no longer read. The result computes the same values.
Program simplify(const Program& program);
// The same for a program of several results: `results` are kept like program.result, and renamed to their new ids.
Program simplify(const Program& program, std::span<ValueId> results);

// A program as simplify() leaves it. What needs one asks for this type, so that it is simplified once.
class SimplifiedProgram {
 public:
  explicit SimplifiedProgram(const Program& program) : program_(simplify(program)) {}

  const Program& operator*() const { return program_; }
  const Program* operator->() const { return &program_; }

 private:
  Program program_;
};

// Puts the operands of a commutative operation in one order, by their numbers among `nodes`, constants last, so that
// equal programs become the same program.
void order_operands(Node& node, std::span<const Node> nodes);

// True if the program gives this constant everywhere.
bool is_constant(const Program& program, int64_t payload);
// True for the score_mod that returns its score, and the mask_mod that keeps everything.
bool is_identity(const Program& program);

}  // namespace flashlift::score
