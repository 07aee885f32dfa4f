// A try to read one pair of products as attention. The steps are in the order of run(): what multiplies the values is
// read (attempt.cpp), then what the call needs is derived from it (attempt_results.cpp).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "flashlift/result.h"
#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/lift/evaluate.h"
#include "stablehlo/lift/layout.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/lift/program.h"
#include "stablehlo/lift/roles.h"
#include "stablehlo/lift/softmax.h"

namespace flashlift::stablehlo {

// Remembers which operations compute with a product's result.
class DependsOn {
 public:
  explicit DependsOn(mlir::Operation* product) : product_(product) {}
  bool operator()(mlir::Operation* op) {
    if (op == product_) {
      return true;
    }
    if (const auto found = known_.find(op); found != known_.end()) {
      return found->second;
    }
    known_[op] = false;  // SSA has no cycles; this also bounds the walk
    bool depends = false;
    for (const mlir::Value operand : op->getOperands()) {
      mlir::Operation* definition = operand.getDefiningOp();
      depends = depends || (definition != nullptr && (*this)(definition));
    }
    known_[op] = depends;
    return depends;
  }

 private:
  mlir::Operation* product_;
  llvm::DenseMap<mlir::Operation*, bool> known_;
};

// One dimension of the probabilities may have been seen as several atoms.
using DigitSizes = std::vector<std::vector<int64_t>>;

// A try to read one pair of products as attention, with given digits for the dimensions of the probabilities.
class Attempt {
 public:
  // opens_reductions: read "any key is kept" as a formula, which can show what a condition on rows means but cannot
  // become a program; otherwise as the tensor that it is.
  Attempt(mlir::Operation* first, mlir::Operation* second, unsigned side, const DigitSizes& digits,
          bool opens_reductions)
      : first_(first),
        second_(second),
        side_(side),
        digits_(digits),
        opens_reductions_(opens_reductions),
        depends_(first) {}

  Result<LiftedAttention> run();
  // After a failure: the atom that must be split for a new try.
  std::optional<std::pair<size_t, std::pair<size_t, int64_t>>> wanted_split() const { return wanted_split_; }

 private:
  Status place_probabilities();
  Result<Evaluator> make_evaluator();
  Status evaluate_probabilities();
  Status match();
  Status find_division();
  Status place_operands();
  Result<std::vector<PlacedTensor>> pick_sources(bool through_conversions);
  Status place_output();
  Status give_letters();
  Status build_programs();
  Status check_uses();
  Status find_log_sum_exp(mlir::Value value);
  Status place_sinks();
  bool is_sink_source(mlir::Value value);
  std::optional<std::vector<Index>> row_indices(mlir::Value value);
  void request_split(const SplitRequest& request);
  int new_atom(int64_t size);
  std::string summary() const;

  mlir::Operation* first_;
  mlir::Operation* second_;
  unsigned side_;  // which operand of the second product holds the probabilities
  const DigitSizes& digits_;
  bool opens_reductions_;
  DependsOn depends_;
  SymArena arena_;
  std::vector<int64_t> sizes_ = std::vector<int64_t>(kMaxAtoms, 1);
  int next_atom_ = 1;
  std::vector<std::pair<size_t, size_t>> origin_ = std::vector<std::pair<size_t, size_t>>(kMaxAtoms, {~size_t{0}, 0});
  std::vector<int64_t> key_dims_;  // the probabilities' dimensions that are keys
  std::vector<Index> probability_indices_;
  std::optional<Evaluator> evaluator_;
  SymId probability_ = kNoSym;
  SymId whole_ = kNoSym;  // the probabilities with what divides the second product's result
  Product product_;
  Softmax softmax_;
  std::vector<Affine> q_indices_, k_indices_, v_indices_;
  mlir::Value q_operand_, k_operand_, v_operand_;
  std::vector<int> depth_, value_depth_;
  PlacedTensor q_, k_, v_, out_;
  Roles roles_;
  std::vector<LeafInfo> leaf_infos_;
  std::optional<std::pair<size_t, std::pair<size_t, int64_t>>> wanted_split_;
  LiftedAttention lifted_;
};

std::vector<Affine> affine_of(const std::vector<Index>& indices);

}  // namespace flashlift::stablehlo
