#include "flashlift/program.h"
#include "score/operation.h"

namespace flashlift {
namespace {

constexpr OpInfo kTable[] = {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, cpu_integer, library, cuda, cuda_interval, stablehlo, aten, doc)              \
  {#name, arity, TypeRule::rule, doc},
#include "flashlift/ops.def"
};

constexpr score::Operation kOperations[] = {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, real_interval, integer_interval, shape, domain, \
                     ulps, cpu_real, cpu_integer, library, cuda, cuda_interval, stablehlo, aten, doc)              \
  {score::Shape::shape, score::Domain::domain, ulps, cuda, score::IntervalForm::cuda_interval, stablehlo, aten},
#include "flashlift/ops.def"
};

}  // namespace

namespace score {

const Operation& operation(Op op) { return kOperations[static_cast<size_t>(op)]; }

}  // namespace score

const OpInfo& info(Op op) { return kTable[static_cast<size_t>(op)]; }

const char* to_string(Type type) {
  switch (type) {
    case Type::kI1:
      return "i1";
    case Type::kI32:
      return "i32";
    case Type::kI64:
      return "i64";
    case Type::kF32:
      return "f32";
  }
  return "?";
}

Type scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return Type::kI1;
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kI32:
      return Type::kI32;
    case DType::kU32:
    case DType::kI64:
      return Type::kI64;
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return Type::kF32;
  }
  return Type::kF32;
}

}  // namespace flashlift
