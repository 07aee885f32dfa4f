// One score-program operation as LLVM IR, on scalars or on vectors.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <span>

#include "cpu/jit/math.h"
#include "cpu/tile/isa.h"
#include "flashlift/program.h"

namespace flashlift::cpu {

class OpEmitter {
 public:
  OpEmitter(llvm::IRBuilder<>& builder, Isa isa, int lanes) : ir_(builder), math_(builder), isa_(isa), lanes_(lanes) {}

  // Operands are all scalars, or all vectors of `lanes`. Not for inputs, constants and loads.
  llvm::Value* emit(const Node& node, Type operand_type, std::span<llvm::Value* const> x);

  MathEmitter& math() { return math_; }

 private:
  using Predicate = llvm::CmpInst::Predicate;

  llvm::Value* emit_integer(Op op, llvm::Value* x, llvm::Value* y);
  llvm::Value* emit_real(Op op, llvm::Value* x, llvm::Value* y);
  llvm::Value* emit_convert(Type target, Type source, llvm::Value* x);

  // Functions that rows of flashlift/ops.def call.
  llvm::Value* emit_shl(llvm::Value* x, llvm::Value* y);
  llvm::Value* emit_shr(llvm::Value* x, llvm::Value* y);
  llvm::Value* emit_ushr(llvm::Value* x, llvm::Value* y);
  llvm::Value* emit_integer_sign(llvm::Value* x);
  llvm::Value* emit_extremum(Predicate is_better, llvm::Value* x, llvm::Value* y);
  llvm::Value* emit_sign(llvm::Value* x);
  llvm::Value* emit_is_finite(llvm::Value* x);
  llvm::Value* emit_round_bf16(llvm::Value* x);
  llvm::Value* emit_round_f16(llvm::Value* x);
  // Calls the vector form of a scalar function, such as "erff".
  llvm::Value* library(const char* function, llvm::Value* x, llvm::Value* y = nullptr);

  struct Division {
    llvm::Value* quotient;
    llvm::Value* remainder;
  };
  Division divide(llvm::Value* x, llvm::Value* y);
  Division floor_divide(llvm::Value* x, llvm::Value* y);
  llvm::Value* is_inside(llvm::Value* amount);
  // The quotient, provided that y is not 0, and not -1 if x is the lowest integer.
  llvm::Value* plain_quotient(llvm::Value* x, llvm::Value* y);

  llvm::Value* zero(llvm::Value* like) { return llvm::Constant::getNullValue(like->getType()); }

  llvm::IRBuilder<>& ir_;
  MathEmitter math_;
  Isa isa_;
  int lanes_;
};

}  // namespace flashlift::cpu
