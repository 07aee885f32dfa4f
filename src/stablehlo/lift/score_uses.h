// The uses of the scores: values with one element per score or per row, the products that read these, and the other
// operations that read them.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/softmax.h"
#include "stablehlo/lift/layout.h"
#include "stablehlo/lift/plane.h"

namespace flashlift::stablehlo {

// A value with one element for each place of the score plane, or for each of its rows.
struct PlaneValue {
  std::vector<Index> indices;
  SymId formula = kNoSym;
};

// A product other than the attention's own two that reads a value of the score plane.
struct Exit {
  mlir::Operation* product = nullptr;
  unsigned side = 0;                 // the number of the operand that is a value of the score plane
  std::vector<Index> plane_indices;  // of that operand
  SymId formula = kNoSym;            // of its element

  mlir::Value other() const { return product->getOperand(1 - side); }
};

struct ScoreUses {
  llvm::DenseMap<mlir::Operation*, PlaneValue> values;  // of the plane
  llvm::DenseMap<mlir::Operation*, Refusal> ends;       // other operations that read these, and why
  std::vector<Exit> exits;
  std::vector<mlir::Operation*> log_sum_exps;
};

struct Probabilities;
// Reads all values that are computed from the scores, as long as each element belongs to one score or to one row.
// Values that are computed from the row log-sum-exp or the output do not count: the call returns both. `softmax` is
// null if it is not known yet.
ScoreUses read_score_uses(Plane& plane, const Probabilities& probabilities, const Softmax* softmax);

// A product that formulas of the score plane read, such as the product of the output's gradient and the values.
struct GradientProduct {
  mlir::Operation* product = nullptr;
  SymId formula = kNoSym;
  std::array<std::vector<Affine>, 2> indices;  // of its operands
};
// `value_depth`: the atoms over which such a product sums.
std::vector<GradientProduct> gradient_products(const Plane& plane, const std::vector<int>& value_depth);

// A sum of a formula over the score plane, or over its rows.
struct PlaneSum {
  PlacedTensor tensor;
  SymId formula = kNoSym;
  // The atoms of the value whose elements are summed, sorted: it has `formula` at each of their places, also along
  // dimensions on which the formula does not depend. The sum is over those that `tensor` does not have.
  std::vector<int> atoms;
};

// A tensor that the score reads, and the indices at which it does: a captured tensor, or one computed from captured
// tensors.
struct Term {
  SymId formula = kNoSym;
  PlacedTensor tensor;
};

// The gradient of a term of the score, or, without a term, of the sinks.
struct SumExit {
  PlaneSum sum;
  std::optional<Term> term;
};

// The indices of a tensor's elements.
std::vector<Index> indices_of(const PlacedTensor& tensor, const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
