// Translates tensor operations into formulas: the element of a value at given indices, as a formula over index
// variables.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "flashlift/tensor.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "stablehlo/algebra/affine.h"
#include "stablehlo/algebra/ranges.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/symbol.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/lift/work.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {

// One index of a tensor: affine in the index variables as long as possible, otherwise any integer formula.
struct Index {
  Affine affine;
  SymId general = kNoSym;  // if set, this is the index
  auto operator<=>(const Index&) const = default;
};

// The score op of an elementwise operation with the same operands; nothing for operations that need more than one op.
std::optional<Op> scalar_op(OpKind kind);

// Walks from a value backwards through elementwise operations, layout changes, reductions and sources of indices. It
// stops at the product that is the score, and at every operation that it does not support, which becomes a load.
class Evaluator {
 public:
  // atom_sizes: the sizes of the plane's atoms, by number; atom 0 is the key. `opens_reductions`: read any-of and
  // all-of reductions that do not depend on the score, instead of making them loads. `depends_on_score`: whether an
  // operation depends on the score product's result; such an operation cannot become a load, so that the evaluator must
  // support it. `half`: the 16-bit type of all numbers that queries, keys and values hold, if there is one. Formulas
  // leave out roundings of scores and probabilities to this type (a fused kernel's are more exact), and allow no other
  // 16-bit type. Each evaluation of a value at new indices is a step of `work`.
  Evaluator(SymArena& arena, mlir::Operation* score_product, std::vector<int64_t> atom_sizes, bool opens_reductions,
            std::optional<DType> half, std::function<bool(mlir::Operation*)> depends_on_score, Work& work);

  // kNoSym on failure: why_not() then has the reason, or split_request() names an atom that must be split into two
  // first.
  SymId evaluate(mlir::Value value, const std::vector<Index>& indices);

  // Like evaluate(), but a failure sets `refusal` and changes nothing else.
  SymId try_evaluate(mlir::Value value, const std::vector<Index>& indices, std::optional<Refusal>& refusal);

  // The key as indices of dimensions of these sizes, major to minor, whose product is the number of keys. If a tensor
  // has the keys in several dimensions, separate atoms ("digits" of the key, from kFirstBound on) index these; formulas
  // contain the key only. Equal sizes give equal digits. Nothing if there are no atoms left.
  std::optional<std::vector<Affine>> key_digits(const std::vector<int64_t>& sizes);
  bool runs_over_keys(const Affine& index) const;
  // The digits that are not split further, major to minor; the key itself if it was never split.
  std::vector<int> smallest_key_digits(int atom = kKeyAtom) const;

  // The index, with a complete set of a key's digits replaced by the key.
  Affine with_digits_joined(Affine index) const;
  // The value of an atom; for a digit of the key, a formula of the key.
  SymId atom_formula(int atom);

  // Like try_evaluate(), but with the roundings of scores to `half`, which other formulas leave out.
  SymId evaluate_with_roundings(mlir::Value value, const std::vector<Index>& indices);

  // After a failure.
  Refusal why_not() const { return failure_.value_or(refuse<Reason::kUnreadProbabilities>()); }
  const SplitRequest& split_request() const { return split_request_; }
  // The indices at which the score product's result is read; empty until the evaluator reaches it.
  const std::vector<Index>& score_indices() const { return score_indices_; }
  const std::vector<mlir::Value>& leaves() const { return leaves_; }
  // The values that have been evaluated, each after its operands.
  struct Place {
    mlir::Value value;
    std::vector<Index> indices;
    SymId formula = kNoSym;
  };
  const std::vector<Place>& places() const { return places_; }
  // Whether an evaluator with `opens_reductions` would have given other formulas.
  bool leaves_reductions() const { return leaves_reductions_; }
  // Scores and probabilities that the module rounds to 16 bits, but the formulas do not.
  const std::set<SymId>& unrounded() const { return unrounded_; }
  const std::vector<int64_t>& atom_sizes() const { return atom_sizes_; }

 private:
  SymId evaluate_uncached(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_elementwise(mlir::Operation* op, const std::vector<Index>& indices);
  // evaluate_numbers.cpp
  SymId evaluate_iota(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_convert(mlir::Operation* op, const std::vector<Index>& indices);
  SymId evaluate_compare(mlir::Operation* op, const std::vector<Index>& indices);
  SymId in_own_arithmetic(mlir::Operation* op, Op scalar, std::vector<SymId> args);
  SymId wrapped(SymId value, DType type);
  SymId rounded(SymId value, mlir::Operation* op);
  SymId before_rounding(mlir::Value operand, SymId value);
  bool is_number_of(SymId value, DType half, int depth);
  Ranges ranges();
  SymId evaluate_constant(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_broadcast(mlir::Operation* op, const std::vector<Index>& indices);
  SymId evaluate_reshape(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_slice(mlir::Operation* op, const std::vector<Index>& indices);
  SymId evaluate_dynamic_slice(mlir::Operation* op, const std::vector<Index>& indices);
  SymId evaluate_concatenate(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_pad(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_gather(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_reduce(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_reduce_from_neutral(ReduceKind kind, mlir::Value operand, std::vector<int64_t> dims,
                                     const std::vector<Index>& indices);
  SymId evaluate_sum_by_product(mlir::Value value, const std::vector<Index>& indices);
  SymId evaluate_reduce_over_keys(ReduceKind kind, mlir::Value operand, const std::vector<int64_t>& dims,
                                  std::vector<Index> indices);
  int bound_atom(int64_t size, const std::vector<Index>& indices);
  bool mentions_key(const Index& index) const;
  bool evaluate_pieces(mlir::Value operand, std::vector<Index> indices, size_t dim, int64_t start, int64_t size,
                       std::vector<ReducePiece>& pieces);
  SymId score(const std::vector<Index>& indices);
  // A tensor's element. A leaf must not be computed from the scores.
  SymId leaf(mlir::Value value, const std::vector<Index>& indices);
  SymId load(mlir::Value value, const std::vector<Index>& indices);
  // There is no formula, no failure and no split request: the value may become a leaf.
  bool is_not_understood(SymId result) const {
    return result == kNoSym && !failure_ && split_request_.atom < 0 && !range_split_;
  }

  // One part of the key: of / inner or of % inner.
  struct Digit {
    int of = -1;
    int64_t inner = 0;
    bool is_outer = false;
  };
  bool is_of_key(int atom) const { return atom == kKeyAtom || digits_[static_cast<size_t>(atom)].of >= 0; }
  std::optional<Affine> with_atom_split(const Affine& index, const SplitRequest& request);
  Delinearized delinearize_splitting_keys(Affine offset, const std::vector<int64_t>& dims);

  SymId index_formula(const Index& index, Type type = Type::kI32);
  Index shifted(const Index& index, int64_t offset);
  bool split_range(const Index& index, int64_t boundary);
  std::vector<SymId> evaluate_operands(mlir::Operation* op, const std::vector<Index>& indices);
  SymId fail(Refusal refusal);

  SymArena& arena_;
  mlir::Operation* score_product_;
  std::vector<int64_t> atom_sizes_;
  bool opens_reductions_;
  bool leaves_reductions_ = false;
  std::optional<DType> half_;
  std::function<bool(mlir::Operation*)> depends_on_score_;
  std::vector<mlir::Value> leaves_;
  SameValues same_values_;
  std::vector<Index> score_indices_;
  using Memo = std::map<std::pair<const void*, std::vector<Index>>, SymId>;
  Memo memo_;
  Memo memo_with_roundings_;
  bool rounds_scores_ = false;
  std::vector<Place> places_;
  std::set<SymId> unrounded_;
  Ranges::Known known_ranges_;
  int depth_ = 0;
  Work& work_;
  int64_t steps_ = 0;
  int next_bound_ = kFirstBound;
  std::vector<Digit> digits_ = std::vector<Digit>(kMaxAtoms);  // by atom
  std::vector<int> active_ranges_;                             // atoms of the reductions being evaluated
  std::optional<std::pair<int, int64_t>> range_split_;         // a boundary in a tensor splits this atom's range here
  std::optional<Refusal> failure_;
  SplitRequest split_request_;
};

}  // namespace flashlift::stablehlo
