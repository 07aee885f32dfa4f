#include "stablehlo/reader/verify.h"

#include "llvm/ADT/DenseSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Block.h"
#include "mlir/IR/Region.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/op_table.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/reader/verify_op.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

// Checks the order in which values are defined. MLIR checks it only in registered operations.
class OrderCheck {
 public:
  Status visit(mlir::Operation& op) {
    for (const mlir::Value operand : op.getOperands()) {
      FLASHLIFT_RETURN_IF_ERROR(check_defined(op, operand));
    }
    for (mlir::Region& region : op.getRegions()) {
      FLASHLIFT_RETURN_IF_ERROR(visit_region(op, region));
    }
    done_.insert(&op);
    FLASHLIFT_RETURN_IF_ERROR(check_function(op));
    FLASHLIFT_RETURN_IF_ERROR(check_terminator(op));
    return verify_op(&op);
  }

 private:
  Status visit_region(mlir::Operation& op, mlir::Region& region) {
    if (!region.empty() && !region.hasOneBlock()) {
      return unsupported(
          "{}: '{}' has a region of several blocks; StableHLO needs none: lower control flow to "
          "stablehlo.if, case or while",
          describe(op.getLoc()), op.getName().getStringRef().str());
    }
    for (mlir::Block& block : region) {
      for (mlir::Operation& inner : block) {
        FLASHLIFT_RETURN_IF_ERROR(visit(inner));
      }
    }
    return {};
  }

  // MLIR checks this only for registered operations.
  static Status check_terminator(mlir::Operation& op) {
    const llvm::StringRef name = op.getName().getStringRef();
    const OpInfo* info = find_op({name.data(), name.size()});
    if (info == nullptr || info->effects != Effects::kTerminator ||
        (op.getNextNode() == nullptr && op.getNumResults() == 0)) {
      return {};
    }
    return invalid_argument("{}: expected '{}' to have no results and to be the last operation of its region",
                            describe(op.getLoc()), name.str());
  }

  // MLIR accepts any unknown operation as a terminator. JAX ends the comparators of ApproxTopK with stablehlo.return,
  // and only the verifier of func.return would compare its types with the function's results.
  static Status check_function(mlir::Operation& op) {
    auto function = mlir::dyn_cast<mlir::func::FuncOp>(op);
    if (!function || function.isExternal()) {
      return {};
    }
    mlir::Block& body = function.getBody().front();
    const bool is_ended =
        !body.empty() &&
        (mlir::isa<mlir::func::ReturnOp>(body.back()) ||
         (kind(&body.back()) == OpKind::kReturn && body.back().getOperandTypes() == function.getResultTypes()));
    if (!is_ended) {
      return invalid_argument("{}: expected the function '{}' to end in `return` of its results", describe(op.getLoc()),
                              function.getName().str());
    }
    return {};
  }

  Status check_defined(mlir::Operation& op, mlir::Value operand) const {
    mlir::Operation* definition = operand.getDefiningOp();
    const bool earlier = definition == nullptr || done_.contains(definition);
    mlir::Region* home = operand.getParentRegion();
    if (!earlier || home == nullptr || !home->isAncestor(op.getParentRegion())) {
      return invalid_argument("{}: '{}' uses a value before or outside the place where it is defined",
                              describe(op.getLoc()), op.getName().getStringRef().str());
    }
    return {};
  }

  llvm::DenseSet<mlir::Operation*> done_;
};

}  // namespace

Status verify(mlir::ModuleOp module) { return OrderCheck().visit(*module); }

}  // namespace flashlift::stablehlo
