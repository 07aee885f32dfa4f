// Emits the functions of CompiledGradient: they compute probabilities and the scores' gradients from the two products
// of a tile.
#include <llvm/IR/IRBuilder.h>

#include <cstddef>

#include "cpu/jit/emitter.h"
#include "cpu/jit/program_emitter.h"
#include "cpu/score_function.h"
#include "problem/differentiate.h"

namespace flashlift::cpu {
namespace {

using llvm::Value;

// e to this is a normal number smaller than kLeastProbability.
constexpr double kLeastExponent = -87.1;

class GradientEmitter : ProgramEmitter {
 public:
  GradientEmitter(llvm::Module& module, const Problem& problem, Isa isa, const score::Derivative* derivative)
      : ProgramEmitter(module, problem, isa), derivative_(derivative), gradients_(ir_, lanes_) {}

  void emit(const char* name, bool masked);

 private:
  // The gradient of a captured tensor whose indices do not depend on the key: it is summed over the row.
  struct RowSum {
    const score::LoadDerivative* load;
    Value* lanes;  // address of the sums of the vector's lanes
  };

  const Node& node_of(const score::LoadDerivative& load) const { return derivative_->body.nodes[load.load]; }
  bool is_uniform(const score::LoadDerivative& load) const { return programs_[0].shapes[load.load].uniform; }
  size_t capture_of(const score::LoadDerivative& load) const {
    return programs_[0].captures[static_cast<size_t>(node_of(load).payload)];
  }
  Value* row_field(llvm::Type* type, Value* row, size_t offset);
  void emit_row(bool masked, Value* row);
  void emit_vector(bool masked);
  Value* weigh(Value* ds, Value* weight, bool selects);
  void add_captured(Value* alive, Value* ds);
  void add_row_sums();

  const score::Derivative* derivative_;  // null without a score_mod
  LoadEmitter gradients_;
  std::vector<RowSum> row_sums_;
  Value* row_states_ = nullptr;
  // Values of the current row.
  Value* row_p_ = nullptr;
  Value* row_ds_ = nullptr;
  Value* shift_ = nullptr;
  Value* factor_ = nullptr;
  Value* least_ = nullptr;  // smaller exponents have no probability
  Value* delta_ = nullptr;
};

Value* GradientEmitter::row_field(llvm::Type* type, Value* row, size_t offset) {
  Value* at = ir_.CreateGEP(ir_.getInt8Ty(), row_states_, ir_.CreateMul(row, ir_.getInt64(sizeof(RowGradient))));
  return ir_.CreateLoad(type, ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), at, offset));
}

// ds * weight. `selects`: what a select leaves out, whose weight is 0, gets no gradient, even if ds is NaN.
Value* GradientEmitter::weigh(Value* ds, Value* weight, bool selects) {
  Value* product = ir_.CreateFMul(ds, weight);
  if (!selects) {
    return product;
  }
  Value* zero = llvm::Constant::getNullValue(ds->getType());
  return ir_.CreateSelect(ir_.CreateFCmpUNE(weight, zero), product, zero);
}

// ds is multiplied by a weight only where p is not 0, because the weight of a masked element may be infinite.
void GradientEmitter::add_captured(Value* alive, Value* ds) {
  Value* zero = llvm::Constant::getNullValue(ds->getType());
  size_t next_sum = 0;
  for (const score::LoadDerivative& load : derivative_->loads) {
    Value* weight = splat(programs_[0].values[load.weight]);
    Value* value = ir_.CreateSelect(alive, weigh(ds, weight, load.selects), zero);
    if (is_uniform(load)) {
      Value* lanes = row_sums_[next_sum++].lanes;
      ir_.CreateStore(ir_.CreateFAdd(ir_.CreateLoad(ds->getType(), lanes), value), lanes);
    } else {
      gradients_.accumulate(capture_of(load), load_indices(programs_[0], node_of(load)), value);
    }
  }
}

void GradientEmitter::add_row_sums() {
  for (const RowSum& sum : row_sums_) {
    Value* lanes = ir_.CreateLoad(vector_of(ir_.getFloatTy()), sum.lanes);
    Value* total = ir_.CreateExtractElement(lanes, uint64_t{0});
    for (int i = 1; i < lanes_; ++i) {
      total = ir_.CreateFAdd(total, ir_.CreateExtractElement(lanes, static_cast<uint64_t>(i)));
    }
    Value* at = gradients_.address(capture_of(*sum.load), load_indices(programs_[0], node_of(*sum.load)));
    ir_.CreateStore(ir_.CreateFAdd(ir_.CreateLoad(ir_.getFloatTy(), at), total), at);
  }
}

void GradientEmitter::emit_vector(bool masked) {
  llvm::Type* vector = vector_of(ir_.getFloatTy());
  Value* p_at = ir_.CreateGEP(ir_.getFloatTy(), row_p_, column_);
  Value* ds_at = ir_.CreateGEP(ir_.getFloatTy(), row_ds_, column_);
  score_ = ir_.CreateFMul(ir_.CreateAlignedLoad(vector, p_at, llvm::Align(4)), scale_);
  Value* dp = ir_.CreateAlignedLoad(vector, ds_at, llvm::Align(4));
  Value* result = score_;
  Value* kept = nullptr;
  for (ProgramState& state : programs_) {
    emit_nodes(state, false);
    Value* value = splat(state.values[state.program->result]);
    (state.program->kind == ProgramKind::kScoreMod ? result : kept) = value;
  }
  Value* visible = ir_.CreateFCmpUNE(result, llvm::ConstantFP::getInfinity(vector, true));
  if (masked) {
    visible = ir_.CreateAnd(visible, inside());
    visible = kept == nullptr ? visible : ir_.CreateAnd(visible, kept);
  }
  Value* zero = llvm::Constant::getNullValue(vector);
  Value* exponent = ir_.CreateFSub(result, splat(shift_));
  Value* in_range = ir_.CreateFCmpUGE(exponent, llvm::ConstantFP::get(vector, kLeastExponent));
  Value* exponential = ops_.math().exp(ir_.CreateSelect(in_range, exponent, zero));
  visible = ir_.CreateAnd(visible, ir_.CreateAnd(in_range, ir_.CreateFCmpUGE(exponential, splat(least_))));
  Value* p = ir_.CreateSelect(visible, ir_.CreateFMul(exponential, splat(factor_)), zero);
  Value* alive = ir_.CreateFCmpUNE(p, zero);
  Value* ds = ir_.CreateFMul(p, ir_.CreateFSub(dp, splat(delta_)));
  Value* d_score = ds;
  if (derivative_ != nullptr) {
    d_score = weigh(ds, splat(programs_[0].values[derivative_->d_score]), derivative_->selects);
  }
  ir_.CreateAlignedStore(p, p_at, llvm::Align(4));
  ir_.CreateAlignedStore(ir_.CreateSelect(alive, d_score, zero), ds_at, llvm::Align(4));
  if (derivative_ != nullptr) {
    add_captured(alive, ds);
  }
}

void GradientEmitter::emit_row(bool masked, Value* row) {
  shift_ = row_field(ir_.getFloatTy(), row, offsetof(RowGradient, shift));
  factor_ = row_field(ir_.getFloatTy(), row, offsetof(RowGradient, factor));
  delta_ = row_field(ir_.getFloatTy(), row, offsetof(RowGradient, delta));
  least_ = ir_.CreateFDiv(llvm::ConstantFP::get(ir_.getFloatTy(), kLeastProbability), factor_);
  for (const RowSum& sum : row_sums_) {
    ir_.CreateStore(llvm::Constant::getNullValue(vector_of(ir_.getFloatTy())), sum.lanes);
  }
  emit_loop("keys", columns_, lanes_, [&](Value* column) {
    set_column(column);
    emit_vector(masked);
  });
  add_row_sums();
}

void GradientEmitter::emit(const char* name, bool masked) {
  if (derivative_ != nullptr) {
    add_program(derivative_->body);
  }
  if (masked && problem_.mask_mod) {
    add_program(*problem_.mask_mod);
  }
  open_function(name);
  Value* gradients = field(ir_.getPtrTy(), offsetof(GradientArguments, gradients));
  for (size_t i = 0; i < problem_.captures.size(); ++i) {
    Capture accumulator = problem_.captures[i];
    accumulator.dtype = DType::kF32;
    gradients_.declare(accumulator, gradients, i);
  }
  if (derivative_ != nullptr) {
    for (const score::LoadDerivative& load : derivative_->loads) {
      if (is_uniform(load)) {
        row_sums_.push_back({&load, ir_.CreateAlloca(vector_of(ir_.getFloatTy()))});
      }
    }
  }
  row_states_ = field(ir_.getPtrTy(), offsetof(GradientArguments, rows));
  Value* p = field(ir_.getPtrTy(), offsetof(ScoreArguments, s));
  Value* ds = field(ir_.getPtrTy(), offsetof(GradientArguments, ds));
  Value* stride = field(ir_.getInt64Ty(), offsetof(ScoreArguments, s_stride));
  emit_rows([&](Value* row) {
    row_p_ = ir_.CreateGEP(ir_.getFloatTy(), p, ir_.CreateMul(row, stride));
    row_ds_ = ir_.CreateGEP(ir_.getFloatTy(), ds, ir_.CreateMul(row, stride));
    emit_row(masked, row);
  });
  ir_.CreateRetVoid();
}

}  // namespace

std::unique_ptr<llvm::Module> emit_gradient_module(llvm::LLVMContext& context, const Problem& problem, Isa isa,
                                                   const std::vector<bool>& wants_gradient) {
  auto module = std::make_unique<llvm::Module>("flashlift_gradient", context);
  const std::optional<score::Derivative> derivative = problem::differentiate(problem, wants_gradient);
  const score::Derivative* pointer = derivative ? &*derivative : nullptr;
  GradientEmitter(*module, problem, isa, pointer).emit(kMaskedGradientName, true);
  if (derivative) {
    GradientEmitter(*module, problem, isa, pointer).emit(kUnmaskedGradientName, false);
  }
  return module;
}

}  // namespace flashlift::cpu
