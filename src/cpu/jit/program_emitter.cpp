#include "cpu/jit/program_emitter.h"

#include <cstddef>

#include "cpu/score_function.h"
#include "score/operation.h"

namespace flashlift::cpu {
namespace {

using llvm::Value;

bool is_query(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  const bool converts = node.op == Op::k_to_i32 || node.op == Op::k_to_i64;
  return node.op == Op::k_q || (converts && is_query(program, node.operands[0]));
}

Shape shape_of(const Node& node, const std::vector<Shape>& shapes) {
  Shape shape;
  for (const ValueId operand : node.operands) {
    shape.uniform = shape.uniform && shapes[operand].uniform;
  }
  const auto x = [&](size_t i) { return shapes[node.operands[i]]; };
  if (node.op == Op::k_score) {
    return {false, 0};
  }
  if (node.op == Op::k_kv) {
    return {false, 1};
  }
  if (score::is_any(node.op, {Op::k_add, Op::k_sub}) && (x(0).uniform || x(1).uniform)) {
    shape.direction = x(0).direction + (node.op == Op::k_add ? x(1).direction : -x(1).direction);
  }
  if (node.op == Op::k_neg) {
    shape.direction = -x(0).direction;
  }
  if (score::is_any(node.op, {Op::k_to_i32, Op::k_to_i64})) {
    shape.direction = x(0).direction;
  }
  if (node.type != Type::kI32 && node.type != Type::kI64) {
    shape.direction = 0;
  }
  return shape;
}

}  // namespace

ProgramEmitter::ProgramEmitter(llvm::Module& module, const Problem& problem, Isa isa)
    : module_(module),
      problem_(problem),
      isa_(isa),
      lanes_(tile_kernels(isa).lanes),
      ir_(module.getContext()),
      ops_(ir_, isa, lanes_),
      loads_(ir_, lanes_) {}

Value* ProgramEmitter::constant(const Node& node) {
  switch (node.type) {
    case Type::kI1:
      return ir_.getInt1(node.payload != 0);
    case Type::kI32:
      return ir_.getInt32(static_cast<uint32_t>(node.payload));
    case Type::kI64:
      return ir_.getInt64(static_cast<uint64_t>(node.payload));
    case Type::kF32:
      return llvm::ConstantFP::get(
          ir_.getContext(),
          llvm::APFloat(llvm::APFloat::IEEEsingle(), llvm::APInt(32, static_cast<uint32_t>(node.payload))));
  }
  return nullptr;
}

Value* ProgramEmitter::input(Op op) const {
  if (op == Op::k_b) {
    return b_;
  }
  if (op == Op::k_h) {
    return h_;
  }
  if (op == Op::k_q) {
    return q_;
  }
  if (op == Op::k_kv) {
    return kv_;
  }
  return op == Op::k_q_len ? q_len_ : kv_len_;
}

Value* ProgramEmitter::emit_node(ProgramState& state, const Node& node) {
  switch (info(node.op).rule) {
    case TypeRule::kInputF32:
      return score_;
    case TypeRule::kInputI32:
      return input(node.op);
    case TypeRule::kConstant:
      return constant(node);
    case TypeRule::kLoad:
      return loads_.emit(state.captures[static_cast<size_t>(node.payload)], load_indices(state, node));
    case TypeRule::kSearch:
      return loads_.search(state.captures[static_cast<size_t>(node.payload)], state.values[node.operands[0]]);
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
    case TypeRule::kPredicate:
    case TypeRule::kSelect:
    case TypeRule::kConvert:
    case TypeRule::kBitcast:
      break;
  }
  std::vector<Value*> operands;
  bool uniform = true;
  for (const ValueId operand : node.operands) {
    operands.push_back(state.values[operand]);
    uniform = uniform && !operands.back()->getType()->isVectorTy();
  }
  if (!uniform) {
    for (Value*& operand : operands) {
      operand = splat(operand);
    }
  }
  const Type operand_type = state.program->nodes[node.operands.back()].type;
  return ops_.emit(node, operand_type, operands);
}

void ProgramEmitter::emit_nodes(ProgramState& state, bool uniform) {
  for (size_t i = 0; i < state.program->nodes.size(); ++i) {
    if (state.shapes[i].uniform == uniform) {
      state.values[i] = emit_node(state, state.program->nodes[i]);
    }
  }
}

void ProgramEmitter::add_program(const Program& program) {
  ProgramState state{&program, {}, std::vector<Value*>(program.nodes.size()), {}};
  for (const Node& node : program.nodes) {
    state.shapes.push_back(shape_of(node, state.shapes));
  }
  for (const Capture& capture : program.captures) {
    size_t position = 0;
    while (problem_.captures[position].name != capture.name) {
      ++position;  // verify(problem) checked the name
    }
    state.captures.push_back(position);
  }
  programs_.push_back(std::move(state));
}

void ProgramEmitter::open_function(const char* name) {
  auto* type = llvm::FunctionType::get(ir_.getVoidTy(), {ir_.getPtrTy()}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module_);
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  if (lanes_ == 16) {
    // On Intel's processors, LLVM splits 512-bit vectors in two by default.
    function_->addFnAttr("prefer-vector-width", "512");
    function_->addFnAttr("min-legal-vector-width", "512");
  }
  ir_.SetInsertPoint(block("entry"));
  arguments_ = function_->getArg(0);
  columns_ = field(ir_.getInt64Ty(), offsetof(ScoreArguments, columns));
  kv_begin_ = ir_.CreateTrunc(field(ir_.getInt64Ty(), offsetof(ScoreArguments, kv_begin)), ir_.getInt32Ty());
  q_len_ = field(ir_.getInt32Ty(), offsetof(ScoreArguments, q_len));
  kv_len_ = field(ir_.getInt32Ty(), offsetof(ScoreArguments, kv_len));
  scale_ = splat(field(ir_.getFloatTy(), offsetof(ScoreArguments, scale)));
  coordinates_ = field(ir_.getPtrTy(), offsetof(ScoreArguments, coordinates));
  Value* captures = field(ir_.getPtrTy(), offsetof(ScoreArguments, captures));
  for (size_t i = 0; i < problem_.captures.size(); ++i) {
    loads_.declare(problem_.captures[i], captures, i);
  }
}

std::vector<LoadIndex> ProgramEmitter::load_indices(const ProgramState& state, const Node& node) {
  std::vector<LoadIndex> indices;
  for (const ValueId operand : node.operands) {
    indices.push_back({state.values[operand], state.shapes[operand].direction, is_query(*state.program, operand)});
  }
  return indices;
}

void ProgramEmitter::set_row(Value* row) {
  Value* at = ir_.CreateGEP(ir_.getInt8Ty(), coordinates_, ir_.CreateMul(row, ir_.getInt64(sizeof(RowCoordinates))));
  const auto coordinate = [&](size_t offset) {
    return ir_.CreateLoad(ir_.getInt32Ty(), ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), at, offset));
  };
  b_ = coordinate(offsetof(RowCoordinates, b));
  h_ = coordinate(offsetof(RowCoordinates, h));
  q_ = coordinate(offsetof(RowCoordinates, q));
}

void ProgramEmitter::set_column(Value* column) {
  column_ = column;
  Value* first = ir_.CreateAdd(kv_begin_, ir_.CreateTrunc(column, ir_.getInt32Ty()));
  kv_ = ir_.CreateAdd(splat(first), ir_.CreateStepVector(vector_of(ir_.getInt32Ty())));
}

Value* ProgramEmitter::inside() {
  Value* lane = ir_.CreateStepVector(vector_of(ir_.getInt32Ty()));
  return ir_.CreateICmpSLT(lane, splat(ir_.CreateTrunc(ir_.CreateSub(columns_, column_), ir_.getInt32Ty())));
}

}  // namespace flashlift::cpu
