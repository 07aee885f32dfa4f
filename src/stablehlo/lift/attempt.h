// Tries to match one (QKᵀ, PV) pair of products as attention. The steps are in the order of run(): what multiplies the
// values is read (attempt.cpp), then what the call needs is derived from it (attempt_results.cpp).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/algebra/gradient_check.h"
#include "stablehlo/algebra/program.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/roles.h"
#include "stablehlo/algebra/softmax.h"
#include "stablehlo/lift/evaluate.h"
#include "stablehlo/lift/layout.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/lift/work.h"

namespace flashlift::stablehlo {

// Remembers which operations compute with an operation's result. `barriers` are taken for such that do not.
class DependsOn {
 public:
  DependsOn(mlir::Operation* product, std::vector<mlir::Operation*> barriers)
      : product_(product), barriers_(std::move(barriers)) {}
  bool operator()(mlir::Operation* op);

 private:
  // What needs no look at the operands.
  std::optional<bool> known(mlir::Operation* op) const;

  mlir::Operation* product_;
  std::vector<mlir::Operation*> barriers_;
  llvm::DenseMap<mlir::Operation*, bool> known_;
};

// One dimension of the probabilities may have been seen as several atoms.
using DigitSizes = std::vector<std::vector<int64_t>>;

// What the score plane is computed for.
enum class GradientUse : uint8_t {
  kNone,          // the output alone
  kBesideOutput,  // the output and its gradient; both become calls
  kAlone,         // the gradient; the second product is that of the probabilities and the output's gradient
};

struct AttemptOptions {
  // Read "any key is kept" as a formula, which can show what a condition on rows means but cannot become a program;
  // otherwise as the tensor that it is.
  bool opens_reductions = false;
  GradientUse gradient = GradientUse::kNone;
  Work* work = nullptr;  // that the attempt takes its steps from
};

// Tries to match one pair of products as attention, with given digits for the dimensions of the probabilities.
class Attempt {
 public:
  Attempt(mlir::Operation* first, mlir::Operation* second, unsigned side, const DigitSizes& digits,
          const AttemptOptions& options)
      : first_(first),
        second_(second),
        side_(side),
        digits_(digits),
        options_(options),
        half_(half_type(first, second, side, options)),
        // The gradient of the output is computed from the output as a rule, and is no part of the score plane.
        depends_(first, options.gradient == GradientUse::kBesideOutput ? std::vector{second}
                                                                       : std::vector<mlir::Operation*>{}) {}

  Outcome<LiftedAttention> run();
  // After a failure: the atom that must be split for a new try.
  std::optional<std::pair<size_t, std::pair<size_t, int64_t>>> wanted_split() const { return wanted_split_; }
  int64_t replaced_parts() const { return arena_.replaced_parts(); }

 private:
  Proof place_probabilities();
  Outcome<Evaluator> make_evaluator();
  Proof evaluate_probabilities();
  Proof match();
  Proof check_maximum();
  Proof check_clean_up();
  bool data_may_be_infinite() const;
  Proof find_division();
  Proof place_operands();
  Outcome<std::vector<PlacedTensor>> pick_sources(bool through_conversions);
  Proof place_output();
  Proof place_values_of_gradient();  // attempt_gradient.cpp
  Proof give_letters();
  Proof build_programs();
  KnownBounds known_bounds() const;
  Proof give_empty_rows_their_log_sum_exp();
  bool is_never_empty();
  Proof check_uses();
  Proof find_gradient();  // attempt_gradient.cpp
  Proof find_log_sum_exp(mlir::Value value);
  Proof place_sinks();
  void leave_out_known_conditions();
  Proof place_keep_mask();
  bool is_sink_source(mlir::Value value);
  std::optional<std::vector<Index>> row_indices(mlir::Value value);
  static std::optional<DType> half_type(mlir::Operation* first, mlir::Operation* second, unsigned side,
                                        const AttemptOptions& options);
  void request_split(const SplitRequest& request);
  int new_atom(int64_t size);
  // To be asked before new_atom() is called `count` times.
  Proof check_atoms_left(size_t count) const;
  std::string summary() const;

  // --- attempt_exits.cpp: what leaves the score plane ---

  // A value with one element for each place of the score plane, or for each of its rows.
  struct PlaneValue {
    std::vector<Index> indices;
    SymId formula = kNoSym;
  };

  // A product outside of the attention's own two that reads something of the score plane.
  struct Exit {
    mlir::Operation* product = nullptr;
    unsigned side = 0;                  // which operand lies in the score plane
    std::vector<Index> plane_indices;   // of that operand
    SymId formula = kNoSym;             // of its element
    std::vector<Affine> other_indices;  // of the other operand
    PlacedTensor result;
    std::vector<int> shared;  // dimensions of the call's gradient that the result is summed over, too
    bool sums_over_keys = false;
    bool is_of_values = false;  // it gives the gradient by the values, otherwise that by queries or keys

    mlir::Value other() const { return product->getOperand(1 - side); }
  };

  // What is left of a formula of the score plane, summed over all of the plane's dimensions that the tensor lacks.
  struct PlaneSum {
    PlacedTensor tensor;
    SymId formula = kNoSym;
  };

  // A tensor that the score reads, where it reads it: a captured one, or one that is computed from such.
  struct Term {
    SymId formula = kNoSym;
    PlacedTensor tensor;
  };

  // The gradient by a term of the score, or, without one, by the sinks.
  struct SumExit {
    PlaneSum sum;
    std::optional<Term> term;
  };

  // A product that formulas of the score plane read: that of the output's gradient and the values is one.
  struct GradientProduct {
    mlir::Operation* product = nullptr;
    SymId formula = kNoSym;
    std::array<std::vector<Affine>, 2> indices;  // of its operands
  };

  void read_plane();
  void read_users();
  bool read_user(mlir::Operation* user, mlir::Operation* operand);
  std::vector<std::vector<Index>> possible_indices(mlir::Value value) const;
  std::vector<int> row_atoms() const;
  std::vector<GradientProduct> gradient_products() const;
  Proof place_exit(Exit& exit);
  void place_exits();
  bool is_output(mlir::Operation* op) const;
  bool is_inner(mlir::Operation* op);
  Proof leave(mlir::Operation* op);
  Proof leave_as_sum(const PlaneSum& sum, mlir::Operation* user);
  Proof leave_by(const PlaneSum& sum, const std::function<Proof()>& further);
  std::optional<PlaneSum> summed_further(const PlaneSum& sum, mlir::Operation* user);
  bool leave_as_log_sum_exp(mlir::Operation* op);
  bool is_sinks_gradient(const PlaneSum& sum);
  std::optional<Term> term_with_gradient(const PlaneSum& sum);

  // --- attempt_gradient.cpp ---

  Proof lift_gradient();
  Proof find_output_gradient();
  Proof find_lse_gradient();
  Proof check_order() const;
  Proof classify(const Exit& exit);
  ResultView result_of_sum(const SumExit& exit, const std::vector<int64_t>& call_shape,
                           const std::vector<int>& order) const;
  Outcome<Capture> read_term(const Term& term, SymId& score, std::vector<LeafInfo>& infos);
  Proof write_sums();
  bool is_same_tensor(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                      const std::vector<Affine>& y_indices) const;

  GradientCheck check() {
    parts_.probability = whole_;
    parts_.undropped = undropped_;
    parts_.d_probability = gradient_formula_;
    parts_.d_lse = d_lse_formula_;
    return {arena_, evaluator_->atom_sizes(), softmax_, parts_, half_.has_value()};
  }

  mlir::Operation* first_;
  mlir::Operation* second_;
  unsigned side_;  // which operand of the second product holds the probabilities
  const DigitSizes& digits_;
  AttemptOptions options_;
  std::optional<DType> half_;  // the 16-bit type of all numbers in queries, keys and values
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
  SymId undropped_ = kNoSym;      // the probabilities before dropout
  SymId log_sum_exp_ = kNoSym;    // where the module reads it
  SymId program_score_ = kNoSym;  // what the forward call's score_mod computes
  std::optional<std::pair<size_t, std::pair<size_t, int64_t>>> wanted_split_;
  mlir::Value d_out_operand_;
  std::vector<Affine> d_out_indices_;
  SymId gradient_formula_ = kNoSym;  // of the gradient by the probabilities, a load
  SymId d_lse_formula_ = kNoSym;     // of the gradient by the log-sum-exp, if there is one
  mlir::Value d_lse_;
  llvm::DenseMap<mlir::Operation*, PlaneValue> plane_;  // what the scores flow into, as far as it is of the score plane
  llvm::DenseMap<mlir::Operation*, Refusal> ends_;      // what reads that and is not of the plane, and how it was met
  llvm::DenseMap<mlir::Operation*, bool> inner_;
  llvm::DenseMap<mlir::Operation*, Proof> left_;
  llvm::DenseMap<mlir::Operation*, Proof> left_as_sum_;
  std::vector<Exit> exits_;
  std::vector<SumExit> sum_exits_;
  std::vector<mlir::Operation*> log_sum_exps_;
  GradientParts parts_;
  LiftedAttention lifted_;
};

std::vector<Affine> affine_of(const std::vector<Index>& indices);

// A matrix product of static shapes.
bool is_product(mlir::Operation* op);

// The dimensions of a product's operand.
struct OperandDims {
  std::vector<int64_t> batch, contract, free;
};
OperandDims operand_dims(mlir::Operation* product, unsigned side);

// The indices of the other operand of a product, whose free dimensions run through `depth`. Nothing if they do not.
std::optional<std::vector<Affine>> other_indices(mlir::Operation* product, unsigned side,
                                                 const std::vector<Affine>& indices, const std::vector<int>& depth,
                                                 const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
