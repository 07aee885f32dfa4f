// What the scores flow into: values of the score plane and of its rows, the products that read these, and where the
// plane ends.
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

// A product outside of the attention's own two that reads something of the score plane.
struct Exit {
  mlir::Operation* product = nullptr;
  unsigned side = 0;                 // which operand lies in the score plane
  std::vector<Index> plane_indices;  // of that operand
  SymId formula = kNoSym;            // of its element

  mlir::Value other() const { return product->getOperand(1 - side); }
};

struct ScoreUses {
  llvm::DenseMap<mlir::Operation*, PlaneValue> values;  // of the plane
  llvm::DenseMap<mlir::Operation*, Refusal> ends;       // what reads these and is not of the plane, and how it was met
  std::vector<Exit> exits;
  std::vector<mlir::Operation*> log_sum_exps;
};

struct Probabilities;
// Reads everything that the scores flow into, as far as each element belongs to one place of the score plane, or to one
// of its rows. What is computed from the row log-sum-exp is computed from what the call gives, as it is from the
// output; `softmax` is null where it is not known yet.
ScoreUses read_score_uses(Plane& plane, const Probabilities& probabilities, const Softmax* softmax);

// A product that formulas of the score plane read: that of the output's gradient and the values is one.
struct GradientProduct {
  mlir::Operation* product = nullptr;
  SymId formula = kNoSym;
  std::array<std::vector<Affine>, 2> indices;  // of its operands
};
// `value_depth`: the atoms that such a product sums over.
std::vector<GradientProduct> gradient_products(const Plane& plane, const std::vector<int>& value_depth);

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

// The indices of a tensor's elements.
std::vector<Index> indices_of(const PlacedTensor& tensor, const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
