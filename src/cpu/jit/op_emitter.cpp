#include "cpu/jit/op_emitter.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include "cpu/jit/math_library.h"

namespace flashlift::cpu {

using llvm::Value;
using llvm::Intrinsic::ID;
namespace intrinsic = llvm::Intrinsic;

Value* OpEmitter::emit(const Node& node, Type operand_type, std::span<Value* const> x) {
  Value* second = x.size() > 1 ? x[1] : nullptr;
  switch (info(node.op).rule) {
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
      return operand_type == Type::kF32 ? emit_float(node.op, x[0], second) : emit_integer(node.op, x[0], second);
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
      return emit_compare(node.op, operand_type, x[0], second);
    case TypeRule::kPredicate: {
      Value* magnitude = ir_.CreateUnaryIntrinsic(intrinsic::fabs, x[0]);
      return ir_.CreateFCmpOLT(magnitude, llvm::ConstantFP::getInfinity(magnitude->getType()));
    }
    case TypeRule::kSelect:
      return ir_.CreateSelect(x[0], x[1], x[2]);
    case TypeRule::kConvert:
      return emit_convert(node.type, operand_type, x[0]);
    case TypeRule::kBitcast:
      return node.op == Op::k_bitcast_i32 ? math_.to_int_bits(x[0]) : math_.to_float_bits(x[0]);
    case TypeRule::kInputF32:
    case TypeRule::kInputI32:
    case TypeRule::kConstant:
    case TypeRule::kLoad:
    case TypeRule::kSearch:
      break;
  }
  return nullptr;
}

// ---- Integers -----------------------------------------------------------------------------------------------------

Value* OpEmitter::plain_quotient(Value* x, Value* y) {
  const bool constant = llvm::isa<llvm::Constant>(y);
  if (constant || !x->getType()->isVectorTy() || x->getType()->getScalarSizeInBits() != 32) {
    return ir_.CreateSDiv(x, y);  // by a constant: a multiplication
  }
  // There is no vector division of integers, and LLVM would make one scalar division per lane. In double precision the
  // quotient of two 32-bit integers is at least 1 / |y| from the next integer, far more than its rounding error, so
  // that truncating it is exact.
  llvm::Type* wide = x->getType()->getWithNewType(ir_.getDoubleTy());
  Value* quotient = ir_.CreateFDiv(ir_.CreateSIToFP(x, wide), ir_.CreateSIToFP(y, wide));
  return ir_.CreateFPToSI(quotient, x->getType());
}

OpEmitter::Division OpEmitter::divide(Value* x, Value* y) {
  Value* one = math_.integer(1, x);
  Value* minus_one = math_.integer(-1, x);
  Value* lowest =
      llvm::ConstantInt::get(x->getType(), llvm::APInt::getSignedMinValue(x->getType()->getScalarSizeInBits()));
  Value* by_zero = ir_.CreateICmpEQ(y, zero(y));
  Value* overflow = ir_.CreateAnd(ir_.CreateICmpEQ(y, minus_one), ir_.CreateICmpEQ(x, lowest));
  Value* divisor = ir_.CreateSelect(ir_.CreateOr(by_zero, overflow), one, y);
  Value* quotient = plain_quotient(x, divisor);
  Value* rest = ir_.CreateSub(x, ir_.CreateMul(quotient, divisor));
  return {ir_.CreateSelect(by_zero, minus_one, quotient), ir_.CreateSelect(by_zero, x, rest)};
}

OpEmitter::Division OpEmitter::floor_divide(Value* x, Value* y) {
  const Division d = divide(x, y);
  Value* signs_differ = ir_.CreateICmpSLT(ir_.CreateXor(d.remainder, y), zero(x));
  Value* adjust = ir_.CreateAnd(ir_.CreateICmpNE(d.remainder, zero(x)), signs_differ);
  adjust = ir_.CreateAnd(adjust, ir_.CreateICmpNE(y, zero(y)));
  return {ir_.CreateSelect(adjust, ir_.CreateSub(d.quotient, math_.integer(1, x)), d.quotient),
          ir_.CreateSelect(adjust, ir_.CreateAdd(d.remainder, y), d.remainder)};
}

Value* OpEmitter::emit_shift(Op op, Value* x, Value* y) {
  // LLVM's shifts by the width or more are undefined.
  const unsigned width = x->getType()->getScalarSizeInBits();
  Value* inside = ir_.CreateICmpULT(y, math_.integer(width, y));
  Value* last = math_.integer(width - 1, y);
  if (op == Op::k_shr) {
    return ir_.CreateAShr(x, ir_.CreateSelect(inside, y, last));
  }
  Value* amount = ir_.CreateSelect(inside, y, zero(y));
  Value* shifted = op == Op::k_shl ? ir_.CreateShl(x, amount) : ir_.CreateLShr(x, amount);
  return ir_.CreateSelect(inside, shifted, zero(x));
}

Value* OpEmitter::emit_integer(Op op, Value* x, Value* y) {
  switch (op) {
    case Op::k_add:
      return ir_.CreateAdd(x, y);
    case Op::k_sub:
      return ir_.CreateSub(x, y);
    case Op::k_mul:
      return ir_.CreateMul(x, y);
    case Op::k_div:
      return divide(x, y).quotient;
    case Op::k_rem:
      return divide(x, y).remainder;
    case Op::k_floor_div:
      return floor_divide(x, y).quotient;
    case Op::k_mod:
      return floor_divide(x, y).remainder;
    case Op::k_min:
      return ir_.CreateBinaryIntrinsic(intrinsic::smin, x, y);
    case Op::k_max:
      return ir_.CreateBinaryIntrinsic(intrinsic::smax, x, y);
    case Op::k_neg:
      return ir_.CreateNeg(x);
    case Op::k_abs:
      return ir_.CreateBinaryIntrinsic(intrinsic::abs, x, ir_.getFalse());
    case Op::k_sign: {
      Value* positive = ir_.CreateZExt(ir_.CreateICmpSGT(x, zero(x)), x->getType());
      return ir_.CreateOr(positive, ir_.CreateSExt(ir_.CreateICmpSLT(x, zero(x)), x->getType()));
    }
    case Op::k_and:
      return ir_.CreateAnd(x, y);
    case Op::k_or:
      return ir_.CreateOr(x, y);
    case Op::k_xor:
      return ir_.CreateXor(x, y);
    case Op::k_not:
      return ir_.CreateNot(x);
    case Op::k_shl:
    case Op::k_shr:
    case Op::k_ushr:
      return emit_shift(op, x, y);
    default:
      return nullptr;  // the verifier admits no other op over integers
  }
}

// ---- Floats -------------------------------------------------------------------------------------------------------

Value* OpEmitter::emit_round_bf16(Value* x) {
  Value* bits = math_.to_int_bits(x);
  Value* odd = ir_.CreateAnd(ir_.CreateLShr(bits, math_.integer(16, bits)), math_.integer(1, bits));
  Value* rounded = ir_.CreateAdd(ir_.CreateAdd(bits, math_.integer(0x7fff, bits)), odd);
  Value* kept = ir_.CreateAnd(rounded, math_.integer(static_cast<int32_t>(0xffff0000u), bits));
  return ir_.CreateSelect(ir_.CreateFCmpUNO(x, x), x, math_.to_float_bits(kept));
}

Value* OpEmitter::emit_library(Op op, Value* x, Value* y) {
  const LibraryFunction* function = nullptr;
  for (const LibraryFunction& candidate : math_library(isa_)) {
    if (candidate.op == op) {
      function = &candidate;
    }
  }
  const bool scalar = !x->getType()->isVectorTy();
  std::vector<Value*> operands{x};
  if (y != nullptr) {
    operands.push_back(y);
  }
  for (Value*& operand : operands) {
    operand = scalar ? ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), operand) : operand;
  }
  llvm::Type* vector = operands[0]->getType();
  const std::vector<llvm::Type*> types(operands.size(), vector);
  llvm::Module* module = ir_.GetInsertBlock()->getModule();
  const llvm::FunctionCallee callee =
      module->getOrInsertFunction(function->name, llvm::FunctionType::get(vector, types, false));
  Value* result = ir_.CreateCall(callee, operands);
  return scalar ? ir_.CreateExtractElement(result, uint64_t{0}) : result;
}

Value* OpEmitter::emit_float(Op op, Value* x, Value* y) {
  switch (op) {
    case Op::k_add:
      return ir_.CreateFAdd(x, y);
    case Op::k_sub:
      return ir_.CreateFSub(x, y);
    case Op::k_mul:
      return ir_.CreateFMul(x, y);
    case Op::k_div:
      return ir_.CreateFDiv(x, y);
    case Op::k_rem:
      return ir_.CreateFRem(x, y);
    case Op::k_min:
    case Op::k_max: {
      // One vector min and a blend; llvm.minimum would also order the zeros, for twice the instructions.
      Value* better = op == Op::k_min ? ir_.CreateFCmpOLT(y, x) : ir_.CreateFCmpOGT(y, x);
      Value* chosen = ir_.CreateSelect(better, y, x);
      return ir_.CreateSelect(ir_.CreateFCmpUNO(x, y), llvm::ConstantFP::getNaN(x->getType()), chosen);
    }
    case Op::k_neg:
      return ir_.CreateFNeg(x);
    case Op::k_abs:
      return ir_.CreateUnaryIntrinsic(intrinsic::fabs, x);
    case Op::k_sign: {
      Value* unit = ir_.CreateBinaryIntrinsic(intrinsic::copysign, math_.number(1.0, x), x);
      return ir_.CreateSelect(ir_.CreateFCmpONE(x, zero(x)), unit, x);
    }
    case Op::k_floor:
      return ir_.CreateUnaryIntrinsic(intrinsic::floor, x);
    case Op::k_ceil:
      return ir_.CreateUnaryIntrinsic(intrinsic::ceil, x);
    case Op::k_round_even:
      return ir_.CreateUnaryIntrinsic(intrinsic::roundeven, x);
    case Op::k_exp:
      return math_.exp(x);
    case Op::k_exp2:
      return math_.exp2(x);
    case Op::k_log:
      return math_.log(x);
    case Op::k_sqrt:
      return ir_.CreateUnaryIntrinsic(intrinsic::sqrt, x);
    case Op::k_rsqrt:
      return ir_.CreateFDiv(math_.number(1.0, x), ir_.CreateUnaryIntrinsic(intrinsic::sqrt, x));
    case Op::k_tanh:
      return math_.tanh(x);
    case Op::k_sigmoid:
      return math_.sigmoid(x);
    case Op::k_pow:
    case Op::k_expm1:
    case Op::k_log2:
    case Op::k_log1p:
    case Op::k_sin:
    case Op::k_cos:
    case Op::k_erf:
      return emit_library(op, x, y);
    case Op::k_round_bf16:
      return emit_round_bf16(x);
    case Op::k_round_f16:
      return ir_.CreateFPExt(ir_.CreateFPTrunc(x, x->getType()->getWithNewType(ir_.getHalfTy())), x->getType());
    default:
      return nullptr;  // the verifier admits no other op over floats
  }
}

Value* OpEmitter::emit_compare(Op op, Type type, Value* x, Value* y) {
  using Predicate = llvm::CmpInst::Predicate;
  const bool real = type == Type::kF32;
  switch (op) {
    case Op::k_eq:
      return ir_.CreateCmp(real ? Predicate::FCMP_OEQ : Predicate::ICMP_EQ, x, y);
    case Op::k_ne:
      return ir_.CreateCmp(real ? Predicate::FCMP_UNE : Predicate::ICMP_NE, x, y);
    case Op::k_lt:
      return ir_.CreateCmp(real ? Predicate::FCMP_OLT : Predicate::ICMP_SLT, x, y);
    case Op::k_le:
      return ir_.CreateCmp(real ? Predicate::FCMP_OLE : Predicate::ICMP_SLE, x, y);
    case Op::k_gt:
      return ir_.CreateCmp(real ? Predicate::FCMP_OGT : Predicate::ICMP_SGT, x, y);
    default:
      return ir_.CreateCmp(real ? Predicate::FCMP_OGE : Predicate::ICMP_SGE, x, y);
  }
}

Value* OpEmitter::emit_convert(Type target, Type source, Value* x) {
  const auto wanted = [&](llvm::Type* scalar) { return x->getType()->getWithNewType(scalar); };
  const bool real = source == Type::kF32;
  switch (target) {
    case Type::kI1:
      return real ? ir_.CreateFCmpUNE(x, zero(x)) : ir_.CreateICmpNE(x, zero(x));
    case Type::kI32:
    case Type::kI64: {
      llvm::Type* type = wanted(target == Type::kI32 ? ir_.getInt32Ty() : ir_.getInt64Ty());
      if (real) {
        return ir_.CreateIntrinsic(intrinsic::fptosi_sat, {type, x->getType()}, {x});
      }
      return source == Type::kI1 ? ir_.CreateZExt(x, type) : ir_.CreateSExtOrTrunc(x, type);
    }
    case Type::kF32:
      if (real) {
        return x;
      }
      return source == Type::kI1 ? ir_.CreateUIToFP(x, wanted(ir_.getFloatTy()))
                                 : ir_.CreateSIToFP(x, wanted(ir_.getFloatTy()));
  }
  return nullptr;
}

}  // namespace flashlift::cpu
