#include "stablehlo/branches.h"

#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/OperationSupport.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

bool are_equal(mlir::Region& x, mlir::Region& y) {
  llvm::DenseMap<mlir::Value, mlir::Value> inside;
  return mlir::OperationEquivalence::isRegionEquivalentTo(
      &x, &y,
      [&](mlir::Value of_x, mlir::Value of_y) {
        const auto found = inside.find(of_x);
        return mlir::success(of_x == of_y || (found != inside.end() && found->second == of_y));
      },
      [&](mlir::Value of_x, mlir::Value of_y) { inside[of_x] = of_y; },
      mlir::OperationEquivalence::Flags::IgnoreLocations);
}

// Whether all branches are equal and only compute values, so that one of them can replace the choice.
bool can_be_one(mlir::Operation* op) {
  if (op->getNumRegions() == 0) {
    return false;
  }
  for (mlir::Region& region : op->getRegions()) {
    if (!region.hasOneBlock() || region.front().empty() || kind(&region.front().back()) != OpKind::kReturn ||
        region.front().back().getNumOperands() != op->getNumResults() || region.front().getNumArguments() != 0) {
      return false;
    }
  }
  const auto only_values = op->getRegion(0).walk([](mlir::Operation* inner) {
    const bool ends = kind(inner) == OpKind::kReturn;
    return ends || is_removable(inner) ? mlir::WalkResult::advance() : mlir::WalkResult::interrupt();
  });
  if (only_values.wasInterrupted()) {
    return false;
  }
  for (mlir::Region& region : op->getRegions().drop_front()) {
    if (!are_equal(op->getRegion(0), region)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool is_choice(mlir::Operation* op) { return kind(op) == OpKind::kCase || kind(op) == OpKind::kIf; }

void merge_equal_branches(Module& module) {
  std::vector<mlir::Operation*> choices;  // nested ones first
  module.op()->walk([&](mlir::Operation* op) {
    if (is_choice(op)) {
      choices.push_back(op);
    }
  });
  for (mlir::Operation* choice : choices) {
    if (!can_be_one(choice)) {
      continue;
    }
    mlir::Block& branch = choice->getRegion(0).front();
    mlir::Operation* const end = &branch.back();
    for (auto [result, value] : llvm::zip_equal(choice->getResults(), end->getOperands())) {
      result.replaceAllUsesWith(value);
    }
    end->erase();
    choice->getBlock()->getOperations().splice(choice->getIterator(), branch.getOperations());
    choice->erase();
  }
}

}  // namespace flashlift::stablehlo
