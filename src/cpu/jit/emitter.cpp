#include "cpu/jit/emitter.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <cstddef>
#include <vector>

#include "cpu/jit/program_emitter.h"
#include "cpu/score_function.h"

namespace flashlift::cpu {
namespace {

using llvm::Value;

// Emits one of the two functions.
class ScoreEmitter : ProgramEmitter {
 public:
  using ProgramEmitter::ProgramEmitter;
  void emit(const char* name, bool masked);

 private:
  Value* emit_row(Value* row_scores, bool masked);
  Value* emit_scores(bool masked);
  Value* reduce_max(Value* vector);
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

// Emits the final scores of one vector of keys.
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

// Emits a row. Returns its maximum.
Value* ScoreEmitter::emit_row(Value* row_scores, bool masked) {
  llvm::FixedVectorType* vector = vector_of(ir_.getFloatTy());
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  Value* row_maximum = nullptr;
  emit_loop("keys", columns_, lanes_, [&](Value* column) {
    llvm::PHINode* maximum = ir_.CreatePHI(vector, 2);
    maximum->addIncoming(llvm::ConstantFP::getInfinity(vector, true), before);
    set_column(column);
    Value* address = ir_.CreateGEP(ir_.getFloatTy(), row_scores, column);
    score_ = ir_.CreateFMul(ir_.CreateAlignedLoad(vector, address, llvm::Align(4)), scale_);
    Value* scores = emit_scores(masked);
    ir_.CreateAlignedStore(scores, address, llvm::Align(4));
    row_maximum = ir_.CreateSelect(ir_.CreateFCmpOGT(scores, maximum), scores, maximum);
    maximum->addIncoming(row_maximum, ir_.GetInsertBlock());
  });
  return reduce_max(row_maximum);
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
  Value* maxima = field(ir_.getPtrTy(), offsetof(ScoreArguments, maxima));
  emit_rows([&](Value* row) {
    Value* maximum = emit_row(ir_.CreateGEP(ir_.getFloatTy(), scores, ir_.CreateMul(row, stride)), masked);
    ir_.CreateStore(maximum, ir_.CreateGEP(ir_.getFloatTy(), maxima, row));
  });
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
