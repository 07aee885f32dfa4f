#include "stablehlo/forward_passes.h"

#include <optional>
#include <string>
#include <vector>

#include "fmt/ranges.h"
#include "llvm/ADT/SetVector.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/sharding.h"
#include "stablehlo/sharding_finder.h"

namespace flashlift::stablehlo {
namespace {

constexpr const char* kRepeated = "flashlift.repeated";  // of products: the number of their computation

using Shardings = std::vector<std::string>;

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

struct Computation {
  mlir::Operation* op = nullptr;
  Shardings in;
  Shardings out;

  mlir::Block& body() const { return op->getRegion(0).front(); }
  mlir::Operation* end() const { return end_of(op); }
};

// Nothing if it is not of the form that JAX writes.
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

// The operations of a block on which a value depends, up to values that are known.
class Slice {
 public:
  Slice(mlir::Block& block, const mlir::IRMapping& known) : block_(block), known_(known) {}

  // Whether the value can be computed again.
  bool add(mlir::Value value) {
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

  llvm::SetVector<mlir::Operation*> operations;
  llvm::SetVector<mlir::BlockArgument> arguments;

 private:
  mlir::Block& block_;
  const mlir::IRMapping& known_;
};

// Whether a value depends on constants alone.
bool is_constant(mlir::Value value) {
  const mlir::IRMapping none;
  Slice slice(*value.getParentBlock(), none);
  return slice.add(value) && slice.arguments.empty();
}

mlir::Attribute per_value(mlir::MLIRContext* context, const Shardings& shardings) {
  return sdy_attribute(context, fmt::format("sharding_per_value<[{}]>", fmt::join(shardings, ", ")));
}

// Replaces a computation by one with these operands and with those of its results that are used.
mlir::Operation* with_operands(const Computation& old, mlir::ValueRange operands, const Shardings& in) {
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
  state.addOperands(operands);
  state.propertiesAttr = old.op->getPropertiesAsAttribute();
  state.addAttributes(llvm::to_vector(old.op->getDiscardableAttrs()));
  mlir::Operation* now = mlir::OpBuilder(old.op).create(state);
  now->setAttr("in_shardings", per_value(context, in));
  now->setAttr("out_shardings", per_value(context, out));
  for (const auto [result, replaced] : llvm::zip_equal(now->getResults(), kept)) {
    replaced.replaceAllUsesWith(result);
  }
  old.op->erase();
  return now;
}

// Whether a value is the result of a manual computation.
bool is_computed(mlir::Value value) {
  mlir::Operation* op = value.getDefiningOp();
  return op != nullptr && kind(op) == OpKind::kSdyManualComputation;
}

// Computes what the backward pass gets from the forward pass again, if it is near a softmax. Returns the backward pass,
// or null if there is nothing.
mlir::Operation* repeat(const Computation& forward, const Computation& backward, int64_t number_of_backward) {
  mlir::IRMapping known;  // from values of the forward pass to those of the backward pass
  std::vector<std::pair<unsigned, mlir::Value>> repeated;
  for (const auto [i, operand] : llvm::enumerate(backward.op->getOperands())) {
    const mlir::Value argument = backward.body().getArgument(static_cast<unsigned>(i));
    if (operand.getDefiningOp() == forward.op) {
      const unsigned number = mlir::cast<mlir::OpResult>(operand).getResultNumber();
      const mlir::Value value = forward.end()->getOperand(number);
      if (forward.out[number] != backward.in[i]) {
        continue;
      }
      if (is_near_softmax(value) || is_constant(value)) {
        repeated.emplace_back(static_cast<unsigned>(i), value);
      } else {
        known.map(value, argument);
      }
    }
    for (const auto [j, theirs] : llvm::enumerate(forward.op->getOperands())) {
      if (theirs == operand && forward.in[j] == backward.in[i]) {
        known.map(forward.body().getArgument(static_cast<unsigned>(j)), argument);
      }
    }
  }
  Slice slice(forward.body(), known);
  const bool is_any_near = llvm::any_of(repeated, [](const auto& each) { return is_near_softmax(each.second); });
  if (!is_any_near || !llvm::all_of(repeated, [&](const auto& each) { return slice.add(each.second); })) {
    return nullptr;
  }
  llvm::SmallVector<mlir::Value> operands(backward.op->getOperands());
  Shardings in = backward.in;
  for (const mlir::BlockArgument argument : slice.arguments) {
    operands.push_back(forward.op->getOperand(argument.getArgNumber()));
    in.push_back(forward.in[argument.getArgNumber()]);
    known.map(mlir::Value(argument), mlir::Value(backward.body().addArgument(argument.getType(), argument.getLoc())));
  }
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockBegin(&backward.body());
  for (mlir::Operation& op : forward.body()) {
    if (slice.operations.contains(&op)) {
      mlir::Operation* copy = builder.clone(op, known);
      if (kind(copy) == OpKind::kDotGeneral || kind(copy) == OpKind::kDot) {
        copy->setDiscardableAttr(kRepeated, builder.getI64IntegerAttr(number_of_backward));
      }
    }
  }
  for (const auto& [i, value] : llvm::reverse(repeated)) {
    backward.body().getArgument(i).replaceAllUsesWith(known.lookup(value));
    backward.body().eraseArgument(i);
    operands.erase(operands.begin() + i);
    in.erase(in.begin() + i);
  }
  return with_operands(backward, operands, in);
}

}  // namespace

std::optional<Module> with_forward_passes(const Module& given, const ComputationNumbers& except) {
  const auto is_fed = given.op()->walk([](mlir::Operation* op) {
    const bool is_backward = kind(op) == OpKind::kSdyManualComputation && llvm::any_of(op->getOperands(), is_computed);
    return is_backward ? mlir::WalkResult::interrupt() : mlir::WalkResult::advance();
  });
  if (!is_fed.wasInterrupted()) {
    return std::nullopt;
  }
  Module module = given.clone();
  std::vector<mlir::Operation*> computations;
  module.op()->walk([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kSdyManualComputation) {
      computations.push_back(op);
    }
  });
  bool any = false;
  for (auto [number, backward] : llvm::enumerate(computations)) {
    if (except.contains(static_cast<int64_t>(number))) {
      continue;
    }
    llvm::SetVector<mlir::Operation*> givers;
    for (const mlir::Value operand : backward->getOperands()) {
      if (is_computed(operand)) {
        givers.insert(operand.getDefiningOp());
      }
    }
    for (mlir::Operation* giver : givers) {
      const auto forward = computation_of(giver);
      const auto reader = computation_of(backward);
      const bool are_alike = forward && reader && giver->getBlock() == backward->getBlock() &&
                             giver->getAttr("manual_axes") == backward->getAttr("manual_axes");
      if (mlir::Operation* now = are_alike ? repeat(*forward, *reader, static_cast<int64_t>(number)) : nullptr) {
        backward = now;
        with_operands(*forward, giver->getOperands(), forward->in);
        any = true;
      }
    }
  }
  if (!any) {
    return std::nullopt;
  }
  remove_dead_code(module);
  return module;
}

ComputationNumbers repeated_in_vain(const Module& module) {
  ComputationNumbers numbers;
  module.op()->walk([&](mlir::Operation* op) {
    if (const auto number = op->getAttrOfType<mlir::IntegerAttr>(kRepeated)) {
      numbers.insert(number.getInt());
    }
  });
  return numbers;
}

}  // namespace flashlift::stablehlo
