#include "cpu/jit/emitter.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <cstddef>
#include <vector>

#include "cpu/jit/load_emitter.h"
#include "cpu/jit/op_emitter.h"
#include "cpu/jit/score_function.h"

namespace flashlift::cpu {
namespace {

using llvm::Value;

int lanes_of(Isa isa) { return isa >= Isa::kAvx512 ? 16 : 8; }

// How a value changes along the keys of a row.
struct Shape {
  bool uniform = true;
  int direction = 0;  // see LoadIndex
};

Shape shape_of(const Node& node, const std::vector<Shape>& shapes) {
  Shape shape;
  for (const ValueId operand : node.operands) {
    shape.uniform = shape.uniform && shapes[operand].uniform;
  }
  const auto x = [&](size_t i) { return shapes[node.operands[i]]; };
  switch (node.op) {
    case Op::k_score:
      return {false, 0};
    case Op::k_kv:
      return {false, 1};
    case Op::k_add:
      if (x(0).uniform || x(1).uniform) {
        shape.direction = x(0).direction + x(1).direction;
      }
      break;
    case Op::k_sub:
      if (x(0).uniform || x(1).uniform) {
        shape.direction = x(0).direction - x(1).direction;
      }
      break;
    case Op::k_neg:
      shape.direction = -x(0).direction;
      break;
    case Op::k_to_i32:
    case Op::k_to_i64:
      shape.direction = x(0).direction;
      break;
    default:
      break;
  }
  if (node.type != Type::kI32 && node.type != Type::kI64) {
    shape.direction = 0;
  }
  return shape;
}

// One of the two functions. The rows are the outer loop, vectors of keys the inner one. A value that does not depend
// on the key (or the score) is computed once per row, as a scalar.
class ScoreEmitter {
 public:
  ScoreEmitter(llvm::Module& module, const Problem& problem, Isa isa)
      : module_(module),
        problem_(problem),
        isa_(isa),
        lanes_(lanes_of(isa)),
        ir_(module.getContext()),
        ops_(ir_, isa, lanes_),
        loads_(ir_, lanes_) {}

  void emit(const char* name, bool masked);

 private:
  struct ProgramState {
    const Program* program;
    std::vector<Shape> shapes;
    std::vector<Value*> values;
    std::vector<size_t> captures;  // program's captures -> problem's
  };

  Value* field(llvm::Type* type, size_t offset) {
    return ir_.CreateLoad(type, ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), arguments_, offset));
  }
  Value* splat(Value* x) {
    return x->getType()->isVectorTy() ? x : ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), x);
  }
  llvm::BasicBlock* block(const char* name) { return llvm::BasicBlock::Create(module_.getContext(), name, function_); }

  void open_function(const char* name);
  void add_program(const Program& program);
  void emit_nodes(ProgramState& state, bool uniform);
  Value* emit_node(ProgramState& state, const Node& node);
  Value* constant(const Node& node);
  void emit_row(bool masked);
  Value* emit_scores(bool masked);
  Value* reduce_max(Value* vector);

  llvm::Module& module_;
  const Problem& problem_;
  Isa isa_;
  int lanes_;
  llvm::IRBuilder<> ir_;
  OpEmitter ops_;
  LoadEmitter loads_;

  llvm::Function* function_ = nullptr;
  Value* arguments_ = nullptr;
  Value* columns_ = nullptr;
  Value* kv_begin_ = nullptr;
  Value* q_len_ = nullptr;
  Value* kv_len_ = nullptr;
  Value* scale_ = nullptr;
  // Of the current row.
  Value* b_ = nullptr;
  Value* h_ = nullptr;
  Value* q_ = nullptr;
  Value* row_scores_ = nullptr;
  // Of the current vector.
  Value* column_ = nullptr;
  Value* kv_ = nullptr;
  Value* score_ = nullptr;
  std::vector<ProgramState> programs_;
};

Value* ScoreEmitter::constant(const Node& node) {
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

Value* ScoreEmitter::emit_node(ProgramState& state, const Node& node) {
  switch (node.op) {
    case Op::k_score:
      return score_;
    case Op::k_b:
      return b_;
    case Op::k_h:
      return h_;
    case Op::k_q:
      return q_;
    case Op::k_kv:
      return kv_;
    case Op::k_q_len:
      return q_len_;
    case Op::k_kv_len:
      return kv_len_;
    case Op::k_constant:
      return constant(node);
    case Op::k_load: {
      std::vector<LoadIndex> indices;
      for (const ValueId operand : node.operands) {
        indices.push_back({state.values[operand], state.shapes[operand].direction});
      }
      return loads_.emit(state.captures[static_cast<size_t>(node.payload)], indices);
    }
    default:
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

void ScoreEmitter::emit_nodes(ProgramState& state, bool uniform) {
  for (size_t i = 0; i < state.program->nodes.size(); ++i) {
    if (state.shapes[i].uniform == uniform) {
      state.values[i] = emit_node(state, state.program->nodes[i]);
    }
  }
}

void ScoreEmitter::add_program(const Program& program) {
  ProgramState state{&program, {}, std::vector<Value*>(program.nodes.size()), {}};
  for (const Node& node : program.nodes) {
    state.shapes.push_back(shape_of(node, state.shapes));
  }
  for (const Capture& capture : program.captures) {
    size_t position = 0;
    while (problem_.captures[position].name != capture.name) {
      ++position;  // verify(problem) has found each name
    }
    state.captures.push_back(position);
  }
  programs_.push_back(std::move(state));
}

void ScoreEmitter::open_function(const char* name) {
  auto* type = llvm::FunctionType::get(ir_.getVoidTy(), {ir_.getPtrTy()}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module_);
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  if (isa_ >= Isa::kAvx512) {
    // LLVM splits 512-bit vectors in two by default on Intel's processors.
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
  Value* captures = field(ir_.getPtrTy(), offsetof(ScoreArguments, captures));
  for (size_t i = 0; i < problem_.captures.size(); ++i) {
    loads_.declare(problem_.captures[i], captures, i);
  }
}

Value* ScoreEmitter::reduce_max(Value* vector) {
  for (int width = lanes_ / 2; width >= 1; width /= 2) {
    std::vector<int> low;
    std::vector<int> high;
    for (int i = 0; i < width; ++i) {
      low.push_back(i);
      high.push_back(i + width);
    }
    Value* x = ir_.CreateShuffleVector(vector, low);
    Value* y = ir_.CreateShuffleVector(vector, high);
    vector = ir_.CreateSelect(ir_.CreateFCmpOGT(x, y), x, y);
  }
  return ir_.CreateExtractElement(vector, uint64_t{0});
}

// The final scores of one vector of keys.
Value* ScoreEmitter::emit_scores(bool masked) {
  Value* result = score_;
  Value* kept = nullptr;
  for (ProgramState& state : programs_) {
    emit_nodes(state, false);
    Value* value = splat(state.values[state.program->result]);
    if (state.program->kind == ProgramKind::kScoreMod) {
      result = value;
    } else {
      kept = value;
    }
  }
  if (!masked) {
    return result;
  }
  // Columns past the end: only the last vector has them, but a compare is cheaper than a second copy of the loop.
  Value* lane = ir_.CreateStepVector(llvm::FixedVectorType::get(ir_.getInt32Ty(), static_cast<unsigned>(lanes_)));
  Value* left = ir_.CreateTrunc(ir_.CreateSub(columns_, column_), ir_.getInt32Ty());
  Value* inside = ir_.CreateICmpSLT(lane, splat(left));
  kept = kept == nullptr ? inside : ir_.CreateAnd(kept, inside);
  return ir_.CreateSelect(kept, result, llvm::ConstantFP::getInfinity(result->getType(), true));
}

void ScoreEmitter::emit_row(bool masked) {
  for (ProgramState& state : programs_) {
    emit_nodes(state, true);
  }
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  llvm::BasicBlock* loop = block("keys");
  llvm::BasicBlock* done = block("row_end");
  ir_.CreateBr(loop);
  ir_.SetInsertPoint(loop);

  auto* vector = llvm::FixedVectorType::get(ir_.getFloatTy(), static_cast<unsigned>(lanes_));
  llvm::PHINode* column = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  llvm::PHINode* maximum = ir_.CreatePHI(vector, 2);
  column->addIncoming(ir_.getInt64(0), before);
  maximum->addIncoming(llvm::ConstantFP::getInfinity(vector, true), before);
  column_ = column;
  Value* first = ir_.CreateAdd(kv_begin_, ir_.CreateTrunc(column, ir_.getInt32Ty()));
  Value* lane = ir_.CreateStepVector(llvm::FixedVectorType::get(ir_.getInt32Ty(), static_cast<unsigned>(lanes_)));
  kv_ = ir_.CreateAdd(splat(first), lane);
  Value* address = ir_.CreateGEP(ir_.getFloatTy(), row_scores_, column);
  score_ = ir_.CreateFMul(ir_.CreateAlignedLoad(vector, address, llvm::Align(4)), scale_);

  Value* scores = emit_scores(masked);
  ir_.CreateAlignedStore(scores, address, llvm::Align(4));
  Value* raised = ir_.CreateSelect(ir_.CreateFCmpOGT(scores, maximum), scores, maximum);
  Value* next = ir_.CreateAdd(column, ir_.getInt64(static_cast<uint64_t>(lanes_)));
  column->addIncoming(next, ir_.GetInsertBlock());
  maximum->addIncoming(raised, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, columns_), loop, done);
  ir_.SetInsertPoint(done);
  score_ = raised;
}

void ScoreEmitter::emit(const char* name, bool masked) {
  if (problem_.score_mod) {
    add_program(*problem_.score_mod);
  }
  if (masked && problem_.mask_mod) {
    add_program(*problem_.mask_mod);
  }
  open_function(name);
  Value* scores = field(ir_.getPtrTy(), offsetof(ScoreArguments, s));
  Value* stride = field(ir_.getInt64Ty(), offsetof(ScoreArguments, s_stride));
  Value* rows = field(ir_.getInt64Ty(), offsetof(ScoreArguments, rows));
  Value* coordinates = field(ir_.getPtrTy(), offsetof(ScoreArguments, coordinates));
  Value* maxima = field(ir_.getPtrTy(), offsetof(ScoreArguments, maxima));
  llvm::BasicBlock* entry = ir_.GetInsertBlock();
  llvm::BasicBlock* loop = block("rows");
  llvm::BasicBlock* done = block("done");
  ir_.CreateBr(loop);  // called with one row or more
  ir_.SetInsertPoint(loop);
  llvm::PHINode* row = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  row->addIncoming(ir_.getInt64(0), entry);
  const auto coordinate = [&](size_t offset) {
    Value* at = ir_.CreateGEP(ir_.getInt8Ty(), coordinates, ir_.CreateMul(row, ir_.getInt64(sizeof(RowCoordinates))));
    return ir_.CreateLoad(ir_.getInt32Ty(), ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), at, offset));
  };
  b_ = coordinate(offsetof(RowCoordinates, b));
  h_ = coordinate(offsetof(RowCoordinates, h));
  q_ = coordinate(offsetof(RowCoordinates, q));
  row_scores_ = ir_.CreateGEP(ir_.getFloatTy(), scores, ir_.CreateMul(row, stride));

  emit_row(masked);
  ir_.CreateStore(reduce_max(score_), ir_.CreateGEP(ir_.getFloatTy(), maxima, row));
  Value* next = ir_.CreateAdd(row, ir_.getInt64(1));
  row->addIncoming(next, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, rows), loop, done);
  ir_.SetInsertPoint(done);
  ir_.CreateRetVoid();
}

}  // namespace

std::unique_ptr<llvm::Module> emit_score_module(llvm::LLVMContext& context, const Problem& problem, Isa isa) {
  auto module = std::make_unique<llvm::Module>("flashlift_score", context);
  ScoreEmitter(*module, problem, isa).emit(kMaskedName, true);
  if (problem.score_mod) {
    ScoreEmitter(*module, problem, isa).emit(kUnmaskedName, false);
  }
  return module;
}

}  // namespace flashlift::cpu
