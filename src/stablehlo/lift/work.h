// How much work it may be to look for attention in a module.
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
// Modules of hundreds of layers take less than a hundredth.
class Work {
 public:
  static constexpr int64_t kMost = int64_t{1} << 23;             // for a module
  static constexpr int64_t kMostOfAnAttempt = int64_t{1} << 18;  // each step of which remembers its result

  bool is_spent() const { return left_ <= 0; }
  void spend(int64_t steps) { left_ -= steps; }

  // Forgets what holds for the module as it was. To be called when it changes.
  void forget() {
    summed_exponentials.clear();
    computed_from.clear();
  }

  // Candidates share what they are computed from, so what was asked of it is kept. Which exponentials are summed, and
  // what is computed from a product.
  llvm::DenseMap<mlir::Operation*, bool> summed_exponentials;
  llvm::DenseMap<mlir::Operation*, DependsOn> computed_from;
  // Operations that are computed from no summed exponential, but through products. Found when it is first asked for;
  // what is made later is not among them, and what is erased must be taken out.
  std::optional<llvm::DenseSet<mlir::Operation*>> without_softmax;
  // Those that the last product was tried with, each as that of queries and keys.
  std::vector<mlir::Operation*> first_products;
  // The product of queries and keys of the last attention whose scores were found to be used elsewhere.
  mlir::Operation* used_elsewhere = nullptr;
  // Products of queries and keys of a backward pass that was not fused with its attention, and why.
  llvm::DenseMap<mlir::Operation*, Refusal> refused_gradients;

 private:
  int64_t left_ = kMost;
};

}  // namespace flashlift::stablehlo
