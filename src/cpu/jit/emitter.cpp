#include "cpu/jit/emitter.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <cstddef>
#include <vector>

#include "cpu/jit/program_emitter.h"
#include "cpu/jit/score_function.h"

namespace flashlift::cpu {
namespace {

using llvm::Value;

// One of the two functions. The rows are the outer loop, vectors of keys the inner one.
class ScoreEmitter : ProgramEmitter {
 public:
  using ProgramEmitter::ProgramEmitter;
  void emit(const char* name, bool masked);

 private:
  void emit_row(bool masked);
  Value* emit_scores(bool masked);
  Value* reduce_max(Value* vector);

  Value* row_scores_ = nullptr;
};

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
  kept = kept == nullptr ? inside() : ir_.CreateAnd(kept, inside());
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
  set_column(column);
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
  Value* maxima = field(ir_.getPtrTy(), offsetof(ScoreArguments, maxima));
  llvm::BasicBlock* entry = ir_.GetInsertBlock();
  llvm::BasicBlock* loop = block("rows");
  llvm::BasicBlock* done = block("done");
  ir_.CreateBr(loop);  // called with one row or more
  ir_.SetInsertPoint(loop);
  llvm::PHINode* row = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  row->addIncoming(ir_.getInt64(0), entry);
  set_row(row);
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
