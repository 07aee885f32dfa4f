#include "stablehlo/manual_computations.h"

#include <string_view>

#include "fmt/ranges.h"
#include "mlir/IR/Builders.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/sharding.h"
#include "stablehlo/sharding_finder.h"

namespace flashlift::stablehlo {
namespace {

// The parts of "sharding_per_value<[<@mesh, [{"x"}]>, <@mesh, [{}]>]>", as they are written.
Shardings entries(std::string_view text) {
  constexpr std::string_view kBegin = "sharding_per_value<[";
  constexpr std::string_view kEnd = "]>";
  if (!text.starts_with(kBegin) || !text.ends_with(kEnd) || text.size() < kBegin.size() + kEnd.size()) {
    return {};
  }
  text = text.substr(kBegin.size(), text.size() - kBegin.size() - kEnd.size());
  Shardings found;
  int depth = 0;
  std::string entry;
  for (const char each : text) {
    depth += each == '<' ? 1 : each == '>' ? -1 : 0;
    if (depth > 0 || each == '>') {
      entry += each;
    }
    if (depth == 0 && !entry.empty()) {
      found.push_back(std::move(entry));
      entry.clear();
    }
  }
  return found;
}

mlir::Attribute per_value(mlir::MLIRContext* context, const Shardings& shardings) {
  return sdy_attribute(context, fmt::format("sharding_per_value<[{}]>", fmt::join(shardings, ", ")));
}

}  // namespace

std::optional<Computation> computation_of(mlir::Operation* op) {
  if (op == nullptr || kind(op) != OpKind::kSdyManualComputation) {
    return std::nullopt;
  }
  Computation found{op, entries(shardy_text(op->getAttr("in_shardings"))),
                    entries(shardy_text(op->getAttr("out_shardings")))};
  const bool is_known =
      found.end() != nullptr && found.in.size() == op->getNumOperands() && found.out.size() == op->getNumResults() &&
      found.body().getNumArguments() == op->getNumOperands() && found.end()->getNumOperands() == op->getNumResults();
  return is_known ? std::optional(std::move(found)) : std::nullopt;
}

bool Slice::add(mlir::Value value) {
  if (value.getParentBlock() != &block_) {
    return false;
  }
  llvm::SmallVector<mlir::Value> pending = {value};
  while (!pending.empty()) {
    const mlir::Value each = pending.pop_back_val();
    if (known_.contains(each)) {
      continue;
    }
    mlir::Operation* op = each.getDefiningOp();
    if (op == nullptr) {
      arguments.insert(mlir::cast<mlir::BlockArgument>(each));
    } else if (op->getBlock() != &block_ || !(is_removable(op) || is_annotation(op))) {
      return false;
    } else if (operations.insert(op)) {
      op->walk([&](mlir::Operation* inner) {
        for (mlir::Value operand : inner->getOperands()) {
          if (operand.getParentBlock() == &block_) {
            pending.push_back(operand);
          }
        }
      });
    }
  }
  return true;
}

mlir::Operation* with_operands(const Computation& old, mlir::ValueRange operands, const Shardings& in,
                               const AddedResults& added) {
  mlir::MLIRContext* context = old.op->getContext();
  mlir::OperationState state(old.op->getLoc(), old.op->getName());
  state.addRegion()->takeBody(old.op->getRegion(0));
  mlir::Operation* end = &state.regions.front()->front().back();
  std::vector<mlir::OpResult> kept;
  Shardings out;
  for (const mlir::OpResult result : llvm::reverse(old.op->getResults())) {
    if (result.use_empty()) {
      end->eraseOperand(result.getResultNumber());
    }
  }
  for (const mlir::OpResult result : old.op->getResults()) {
    if (!result.use_empty()) {
      kept.push_back(result);
      out.push_back(old.out[result.getResultNumber()]);
      state.addTypes(result.getType());
    }
  }
  state.addTypes(added.types);
  out.insert(out.end(), added.shardings.begin(), added.shardings.end());
  state.addOperands(operands);
  state.propertiesAttr = old.op->getPropertiesAsAttribute();
  state.addAttributes(llvm::to_vector(old.op->getDiscardableAttrs()));
  mlir::Operation* now = mlir::OpBuilder(old.op).create(state);
  now->setAttr("in_shardings", per_value(context, in));
  now->setAttr("out_shardings", per_value(context, out));
  for (const auto [result, replaced] : llvm::zip_equal(now->getResults().take_front(kept.size()), kept)) {
    replaced.replaceAllUsesWith(result);
  }
  old.op->erase();
  return now;
}

std::optional<Computation> forward_pass_of(mlir::Operation* giver, const Computation& backward) {
  auto forward = computation_of(giver);
  const bool are_alike = forward && giver->getBlock() == backward.op->getBlock() &&
                         giver->getAttr("manual_axes") == backward.op->getAttr("manual_axes");
  return are_alike ? std::move(forward) : std::nullopt;
}

}  // namespace flashlift::stablehlo
