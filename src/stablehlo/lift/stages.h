// The stages of an attempt to read a pair of products as attention, in their order. Each stage takes the results of
// earlier ones, and returns its own result or the reason why the pair stays unfused. attempt.cpp calls them.
#pragma once

#include <optional>
#include <vector>

#include "stablehlo/algebra/program.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/roles.h"
#include "stablehlo/algebra/softmax.h"
#include "stablehlo/lift/layout.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/lift/plane.h"
#include "stablehlo/lift/score_uses.h"

namespace flashlift::stablehlo {

// --- 1. read_probabilities.cpp: the probabilities as a formula of the score ---

struct Probabilities {
  std::vector<int64_t> key_dims;  // dimensions that are keys
  std::vector<Index> indices;
  SymId formula = kNoSym;
  std::vector<int> key_digits;  // the key's atoms; several if the keys have several dimensions
};
Outcome<Probabilities> read_probabilities(Plane& plane, const DigitSizes& digits);
// An evaluator that numbers atoms and leaves like the first one, so that equal formulas compare equal. If the keys have
// several dimensions, the index of each is its part of the key.
Outcome<Evaluator> new_evaluator(Plane& plane, const std::vector<int64_t>& key_dims, std::vector<Index>& indices);

// --- 2. place_operands.cpp: the operands and results of the products, and their indices ---

// A tensor, and the indices at which a product reads it.
struct ReadTensor {
  mlir::Value value;
  std::vector<Affine> indices;
};

struct Operands {
  ReadTensor q, k, v;
  std::vector<int> depth, value_depth;  // atoms
  std::optional<PlacedTensor> out;      // of the second product
  // If the module has the gradient alone: the second product's other operand, and how the values were found.
  ReadTensor d_out;
  std::optional<ScoreUses> uses;
};
Outcome<Operands> place_operands(Plane& plane, const Probabilities& probabilities);

// --- 3. match_probabilities.cpp: the softmax in the probabilities ---

struct Match {
  SymId whole = kNoSym;         // the probabilities, with what divides the second product's result
  SymId undropped = kNoSym;     // the same before dropout
  bool divides_output = false;  // the division comes after the product with the values
  Softmax softmax;
  std::optional<PlacedTensor> out;  // the output, after its division
};
Outcome<Match> match_probabilities(Plane& plane, const Probabilities& probabilities, const Operands& operands);
// A second mask does not change probabilities if its condition keeps every key that the softmax keeps: in a row with
// keys, the other probabilities are 0 anyway. For rows without keys, the formula gives the output.
void leave_out_known_conditions(SymArena& arena, Match& match);

// --- 4. name_dimensions.cpp: the meaning of each dimension: batch, head, query, key or depth ---

struct Dimensions {
  Roles roles;
  PlacedTensor q, k, v;
  std::optional<PlacedTensor> out;
  OperandView q_view, k_view, v_view;
  ResultView out_view;
  std::optional<ScoreUses> uses;  // if they decided about the roles
};
Outcome<Dimensions> name_dimensions(Plane& plane, const Probabilities& probabilities, const Operands& operands,
                                    const Match& match);

// The forward pass, as far as it does not depend on other uses of the scores.
struct Forward {
  Probabilities probabilities;
  Operands operands;
  Match match;
  Dimensions dimensions;
};

// --- 5. Other uses of the scores ---

// row_results.cpp
struct LogSumExp {
  SymId formula = kNoSym;
  ResultView view;
};
Outcome<LogSumExp> find_log_sum_exp(Plane& plane, const Forward& forward, mlir::Value value);
// Values that are the log-sum-exp, computed from the sum of a row.
std::vector<mlir::Operation*> log_sum_exps_of(Plane& plane, const Probabilities& probabilities, const Softmax& softmax,
                                              mlir::Value row_sum);
// All values that are computed from the scores must end in results of the call: the output, and the row log-sum-exp if
// the module uses it.
Outcome<std::optional<LogSumExp>> check_uses(Plane& plane, const Forward& forward);
// The atoms of a row's indices.
std::vector<int> row_atoms(const Plane& plane, const Probabilities& probabilities);

// find_gradient.cpp, with score_uses.h and gradient_sums.h: all values that leave the plane are gradients.
struct Gradient {
  OperandView d_out;
  ReadTensor d_out_operand;
  std::optional<OperandView> d_lse;  // zeros if not set
  std::optional<ResultView> d_q, d_k, d_v;
  std::vector<SumExit> sums;  // gradients of terms of the score and of the sinks
  std::optional<LogSumExp> log_sum_exp;
  bool rounds_logarithm = false;  // of probabilities that the gradients read; see Product, also for the next
  std::vector<SymId> apart;
};
Outcome<Gradient> find_gradient(Plane& plane, const Forward& forward);

// --- 6. build_programs.cpp: the problem, with its programs ---

struct Programs {
  Problem problem;
  std::vector<mlir::Value> captures;  // as Problem::captures
  std::vector<LeafInfo> leaves;
  SymId score = kNoSym;  // the result of the score_mod
  Match match;           // the match in which finite masks are guards
  bool nan_where_lse_is_minus_infinity = false;
};
// `gradient` is null if only the output is fused.
Outcome<Programs> build_programs(Plane& plane, const Forward& forward, const std::optional<LogSumExp>& log_sum_exp,
                                 const Gradient* gradient);
// The softmax's score, with the module's roundings to 16 bits if these may be coarse: next to large numbers that are
// added, or tensors that may hold such numbers.
Outcome<SymId> with_roundings(Plane& plane, const Softmax& softmax, const KnownBounds& known);
// Whether a score contains such coarse roundings.
bool rounds_coarsely(const Plane& plane, SymId score, const KnownBounds& known);
// Whether each row provably has a key whose score is not -inf.
bool is_never_empty(Plane& plane, const Softmax& softmax);
// Whether the condition surely holds for a key of each row.
bool keeps_a_key(Plane& plane, SymId condition);
// The conditions of finite masks that may leave out all keys of a row.
std::vector<SymId> masks_of_whole_rows(Plane& plane, const Softmax& softmax);
// Whether the score of a key that the conditions keep may be infinite or NaN: a float tensor may hold such numbers, and
// a logarithm or a quotient may give them.
bool scores_may_be_infinite(const Plane& plane, const Softmax& softmax);

// --- 7. side_operands.cpp: operands other than queries, keys, values and captured tensors ---

struct Sinks {
  OperandView view;
  int64_t count = 0;  // for each head
};
Outcome<std::optional<Sinks>> place_sinks(Plane& plane, const Forward& forward, const Programs& programs);

struct KeepMask {
  OperandView view;
  std::vector<int64_t> shape;
  bool clears_nan = false;  // the output of a row that is NaN and of which it keeps nothing is 0
};
Outcome<std::optional<KeepMask>> place_keep_mask(Plane& plane, const Forward& forward, const Programs& programs);

// --- 8. write_gradient.cpp: the backward call ---

// `programs` are those of the forward call, whose problem already has sinks and dropout.
Outcome<LiftedGradient> write_gradient(Plane& plane, const Forward& forward, const Programs& programs,
                                       Gradient&& gradient);

}  // namespace flashlift::stablehlo
