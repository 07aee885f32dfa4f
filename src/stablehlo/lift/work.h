// The limit of work for the search for attention in a module.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/lift/depends_on.h"

namespace flashlift::stablehlo {

// Counted in steps of about a microsecond, not in time, so that a module gives the same result on every machine.
// Modules with hundreds of layers take less than a hundredth of the limit.
class Work {
 public:
  static constexpr int64_t kMost = int64_t{1} << 23;             // for a module
  static constexpr int64_t kMostOfAnAttempt = int64_t{1} << 18;  // each step of an attempt stores its result

  bool is_spent() const { return left_ <= 0; }
  void spend(int64_t steps) { left_ -= steps; }

  // Drops all stored answers about the module. Call it after a change of the module.
  void forget() {
    summed_exponentials.clear();
    computed_from.clear();
  }

  // Answers that candidates share: which exponentials are summed, and which values are computed from a product.
  llvm::DenseMap<mlir::Operation*, bool> summed_exponentials;
  llvm::DenseMap<mlir::Operation*, DependsOn> computed_from;
  // Operations that are computed from products, but not from a summed exponential. Computed at the first use;
  // operations that are created later are not included, and erased operations must be removed.
  std::optional<llvm::DenseSet<mlir::Operation*>> without_softmax;
  // The products that were tried as the first one for the last second product.
  std::vector<mlir::Operation*> first_products;
  // The first product of the last attention whose scores are used elsewhere.
  mlir::Operation* used_elsewhere = nullptr;
  // Where an operation sets a size at run time, although its result's type is static, if there is one. In XLA, all that
  // is computed from its result then has such a size. Not the operation itself: loops and branches are rewritten.
  std::optional<mlir::Location> sets_size;
  // First products of backward passes that were not fused with their attention, and the reason.
  llvm::DenseMap<mlir::Operation*, Refusal> refused_gradients;

 private:
  int64_t left_ = kMost;
};

}  // namespace flashlift::stablehlo
