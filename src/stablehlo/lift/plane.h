// The state that all stages of an attempt share: the pair of products, the index variables of the score plane between
// them (one element per score), and the evaluator that translates operations into formulas over these variables.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/symbol.h"
#include "stablehlo/lift/depends_on.h"
#include "stablehlo/lift/evaluate.h"
#include "stablehlo/lift/work.h"

namespace flashlift::stablehlo {

struct Pair {
  mlir::Operation* first = nullptr;   // of queries and keys
  mlir::Operation* second = nullptr;  // of probabilities and values
  unsigned side = 0;                  // which operand of the second product holds the probabilities

  mlir::Value probabilities() const { return second->getOperand(side); }
};

// The purpose of the score plane.
enum class GradientUse : uint8_t {
  kNone,          // the output alone
  kBesideOutput,  // the output and its gradient; both become calls
  kAlone,         // the gradient; the second product is that of the probabilities and the output's gradient
};

struct AttemptOptions {
  // True: read "any key is kept" as a formula, which shows what a condition on rows means but cannot become a program.
  // False: read it as a tensor.
  bool opens_reductions = false;
  GradientUse gradient = GradientUse::kNone;
  Work* work = nullptr;  // the budget of the attempt's steps
};

// A dimension of the probabilities that is represented by several atoms, of these sizes.
using DigitSizes = std::vector<std::vector<int64_t>>;

// A digit of a dimension of the probabilities that must be split into two; the minor one has size `inner`.
struct DigitSplit {
  size_t dim = 0;
  size_t digit = 0;
  int64_t inner = 0;
};

struct Plane {
  Plane(const Pair& products, const AttemptOptions& wanted);
  Plane(const Plane&) = delete;  // the evaluator holds a reference to it

  bool has_output() const { return options.gradient != GradientUse::kAlone; }
  bool is_output(mlir::Operation* op) const {
    return options.gradient == GradientUse::kBesideOutput && (op == pair.second || llvm::is_contained(divided, op));
  }
  // Values that do not count as computed from the scores: the output, because gradients are usually computed from it.
  std::vector<mlir::Operation*> outputs() const;

  // Checks that `count` more atoms are available; call it before you add them.
  Proof check_atoms_left(size_t count) const;
  int new_atom(int64_t size);
  // Requests a split of the dimension of the probabilities to which this digit belongs, if the atom is such a digit.
  void request_split(const SplitRequest& request);

  const Pair pair;
  const AttemptOptions options;
  // If the division by the row sum comes after the second product: this division, and those of the output's gradient by
  // the same sum.
  std::vector<mlir::Operation*> divided;
  std::vector<int> divided_depth;   // the atoms of the values' depth at these divisions
  const std::optional<DType> half;  // the 16-bit type of all numbers in queries, keys and values
  DependsOn depends;                // on the scores
  SymArena arena;
  std::vector<int64_t> sizes = std::vector<int64_t>(kMaxAtoms, 1);  // of the atoms
  int next_atom = 1;
  // By atom: the dimension of the probabilities, and its digit; a dimension of -1 for others.
  std::vector<std::pair<int64_t, size_t>> origin = std::vector<std::pair<int64_t, size_t>>(kMaxAtoms, {-1, 0});
  std::optional<Evaluator> evaluator;      // from the first stage on
  bool has_probabilities = false;          // as a formula: the first stage is complete
  std::optional<DigitSplit> wanted_split;  // after a failure: the split with which to try again
};

}  // namespace flashlift::stablehlo
