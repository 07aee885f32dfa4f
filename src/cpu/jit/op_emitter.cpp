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
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
    case TypeRule::kPredicate:
      return operand_type == Type::kF32 ? emit_real(node.op, x[0], second) : emit_integer(node.op, x[0], second);
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

// The verifier rejects operations on integers whose row says `undefined`. The same holds for f32 below.
Value* OpEmitter::emit_integer(Op op, Value* x, Value* y) {
  Value* const undefined = nullptr;
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, cpu_integer, ...)                                                             \
  case Op::k_##name:                                                                                               \
    return cpu_integer;
#include "flashlift/ops.def"
  }
  return undefined;
}

Value* OpEmitter::emit_real(Op op, Value* x, Value* y) {
  Value* const undefined = nullptr;
  switch (op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, ...)                                                                          \
  case Op::k_##name:                                                                                               \
    return cpu_real;
#include "flashlift/ops.def"
  }
  return undefined;
}

// ---- Integers -----------------------------------------------------------------------------------------------------

Value* OpEmitter::plain_quotient(Value* x, Value* y) {
  const bool constant = llvm::isa<llvm::Constant>(y);
  if (constant || !x->getType()->isVectorTy() || x->getType()->getScalarSizeInBits() != 32) {
    return ir_.CreateSDiv(x, y);  // by a constant: becomes a multiplication
  }
  // There is no vector division of integers, and LLVM would emit one scalar division for each lane. In double
  // precision, the quotient of two 32-bit integers is either an integer or at least 1 / |y| away from the nearest one.
  // This is far more than the rounding error, so that truncation is exact.
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

// LLVM's shifts are undefined for amounts of at least the width.
Value* OpEmitter::is_inside(Value* amount) {
  return ir_.CreateICmpULT(amount, math_.integer(amount->getType()->getScalarSizeInBits(), amount));
}

Value* OpEmitter::emit_shl(Value* x, Value* y) {
  Value* inside = is_inside(y);
  return ir_.CreateSelect(inside, ir_.CreateShl(x, ir_.CreateSelect(inside, y, zero(y))), zero(x));
}

Value* OpEmitter::emit_ushr(Value* x, Value* y) {
  Value* inside = is_inside(y);
  return ir_.CreateSelect(inside, ir_.CreateLShr(x, ir_.CreateSelect(inside, y, zero(y))), zero(x));
}

Value* OpEmitter::emit_shr(Value* x, Value* y) {
  Value* last = math_.integer(x->getType()->getScalarSizeInBits() - 1, y);
  return ir_.CreateAShr(x, ir_.CreateSelect(is_inside(y), y, last));
}

Value* OpEmitter::emit_integer_sign(Value* x) {
  Value* positive = ir_.CreateZExt(ir_.CreateICmpSGT(x, zero(x)), x->getType());
  return ir_.CreateOr(positive, ir_.CreateSExt(ir_.CreateICmpSLT(x, zero(x)), x->getType()));
}

// ---- Floats -------------------------------------------------------------------------------------------------------

Value* OpEmitter::emit_round_bf16(Value* x) {
  Value* bits = math_.to_int_bits(x);
  Value* odd = ir_.CreateAnd(ir_.CreateLShr(bits, math_.integer(16, bits)), math_.integer(1, bits));
  Value* rounded = ir_.CreateAdd(ir_.CreateAdd(bits, math_.integer(0x7fff, bits)), odd);
  Value* kept = ir_.CreateAnd(rounded, math_.integer(static_cast<int32_t>(0xffff0000u), bits));
  return ir_.CreateSelect(ir_.CreateFCmpUNO(x, x), x, math_.to_float_bits(kept));
}

Value* OpEmitter::emit_round_f16(Value* x) {
  return ir_.CreateFPExt(ir_.CreateFPTrunc(x, x->getType()->getWithNewType(ir_.getHalfTy())), x->getType());
}

// One vector min and a blend. llvm.minimum would also order the zeros, with twice the instructions.
Value* OpEmitter::emit_extremum(Predicate is_better, Value* x, Value* y) {
  Value* chosen = ir_.CreateSelect(ir_.CreateCmp(is_better, y, x), y, x);
  return ir_.CreateSelect(ir_.CreateFCmpUNO(x, y), llvm::ConstantFP::getNaN(x->getType()), chosen);
}

Value* OpEmitter::emit_sign(Value* x) {
  Value* unit = ir_.CreateBinaryIntrinsic(intrinsic::copysign, math_.number(1.0, x), x);
  return ir_.CreateSelect(ir_.CreateFCmpONE(x, zero(x)), unit, x);
}

Value* OpEmitter::emit_is_finite(Value* x) {
  Value* magnitude = ir_.CreateUnaryIntrinsic(intrinsic::fabs, x);
  return ir_.CreateFCmpOLT(magnitude, llvm::ConstantFP::getInfinity(magnitude->getType()));
}

Value* OpEmitter::library(const char* function, Value* x, Value* y) {
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
      module->getOrInsertFunction(vector_function(function, isa_)->name, llvm::FunctionType::get(vector, types, false));
  Value* result = ir_.CreateCall(callee, operands);
  return scalar ? ir_.CreateExtractElement(result, uint64_t{0}) : result;
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
