#include "stablehlo/barriers.h"

#include <algorithm>
#include <optional>

#include "llvm/ADT/DenseMap.h"
#include "mlir/Analysis/TopologicalSortUtils.h"
#include "mlir/IR/Builders.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {
namespace {

mlir::Operation* barrier_of(mlir::Operation* before, llvm::ArrayRef<mlir::Value> operands) {
  mlir::OpBuilder builder(before);
  return build(builder, before->getLoc(), "stablehlo.optimization_barrier", operands,
               mlir::ValueRange(operands).getTypes());
}

}  // namespace

void Barriers::open(Module& module) {
  std::vector<mlir::Operation*> barriers;
  module.op()->walk([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kOptimizationBarrier) {
      barriers.push_back(op);
    }
  });
  // The positions of uses by barriers, which are erased, too.
  llvm::DenseMap<mlir::Operation*, std::vector<std::pair<size_t, size_t>>> uses_by;
  for (mlir::Operation* barrier : barriers) {
    llvm::SmallVector<mlir::Value> rest;
    std::vector<std::optional<unsigned>> place_in_rest;
    for (const auto [result, operand] : llvm::zip_equal(barrier->getResults(), barrier->getOperands())) {
      const bool is_rest = !is_near_softmax(operand) && !is_near_softmax(result);
      place_in_rest.push_back(is_rest ? std::optional(static_cast<unsigned>(rest.size())) : std::nullopt);
      if (is_rest) {
        rest.push_back(operand);
      }
    }
    if (rest.size() == place_in_rest.size()) {
      continue;
    }
    Opened opened{.barrier = barrier_of(barrier, rest), .uses = {}};
    for (unsigned i = 0; i < place_in_rest.size(); ++i) {
      mlir::Value result = barrier->getResult(i);
      if (place_in_rest[i]) {
        result.replaceAllUsesWith(opened.barrier->getResult(*place_in_rest[i]));
        continue;
      }
      const mlir::Value operand = barrier->getOperand(i);
      for (mlir::OpOperand& use : result.getUses()) {
        if (kind(use.getOwner()) == OpKind::kOptimizationBarrier) {
          uses_by[use.getOwner()].emplace_back(opened_.size(), opened.uses.size());
        }
        opened.uses.push_back({use.getOwner(), use.getOperandNumber(), operand});
      }
      result.replaceAllUsesWith(operand);
    }
    if (const auto found = uses_by.find(barrier); found != uses_by.end()) {
      for (const auto& [of_earlier, number] : found->second) {
        Use& use = opened_[of_earlier].uses[number];
        const std::optional<unsigned> place = place_in_rest[use.operand];
        // If two successive barriers are both opened, only the later one is restored.
        use = place ? Use{opened.barrier, *place, use.value} : Use{nullptr, 0, {}};
      }
      uses_by.erase(found);
    }
    barrier->erase();
    opened_.push_back(std::move(opened));
  }
}

void Barriers::close(const llvm::DenseSet<mlir::Operation*>& erased) {
  for (const Opened& opened : opened_) {
    if (erased.contains(opened.barrier)) {
      continue;  // its operands are gone
    }
    llvm::SmallVector<mlir::Value> operands(opened.barrier->getOperands());
    std::vector<std::pair<size_t, Use>> left;
    for (const Use& use : opened.uses) {
      if (use.user == nullptr || erased.contains(use.user) || use.operand >= use.user->getNumOperands() ||
          use.user->getOperand(use.operand) != use.value) {
        continue;
      }
      const auto begin = operands.begin() + opened.barrier->getNumOperands();
      const auto known = std::find(begin, operands.end(), use.value);
      left.emplace_back(known - operands.begin(), use);
      if (known == operands.end()) {
        operands.push_back(use.value);
      }
    }
    if (operands.empty()) {
      opened.barrier->erase();
      continue;
    }
    if (left.empty()) {
      continue;
    }
    mlir::Operation* barrier = barrier_of(opened.barrier, operands);
    for (unsigned i = 0; i < opened.barrier->getNumResults(); ++i) {
      opened.barrier->getResult(i).replaceAllUsesWith(barrier->getResult(i));
    }
    for (const auto& [number, use] : left) {
      use.user->setOperand(use.operand, barrier->getResult(static_cast<unsigned>(number)));
    }
    mlir::Block* block = barrier->getBlock();
    opened.barrier->erase();
    mlir::sortTopologically(block, llvm::make_range(block->begin(), std::prev(block->end())));
  }
  opened_.clear();
}

}  // namespace flashlift::stablehlo
