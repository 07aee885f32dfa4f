// Manual computations of Shardy, as JAX's shard_map gives them: what the passes between them have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llvm/ADT/SetVector.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/sharding_finder.h"

namespace flashlift::stablehlo {

// Attributes of a manual computation: what names it as a forward pass, and those forward passes that it repeats.
inline constexpr const char* kForwardPass = "flashlift.forward_pass";
inline constexpr const char* kForwardPasses = "flashlift.forward_passes";

using Shardings = std::vector<std::string>;  // such as <@mesh, [{"x"}, {}]>

struct Computation {
  mlir::Operation* op = nullptr;
  Shardings in;
  Shardings out;

  mlir::Block& body() const { return op->getRegion(0).front(); }
  mlir::Operation* end() const { return end_of(op); }
};

// Nothing if it is not of the form that JAX writes.
std::optional<Computation> computation_of(mlir::Operation* op);

// The operations of a block on which a value depends, up to values that are known.
class Slice {
 public:
  Slice(mlir::Block& block, const mlir::IRMapping& known) : block_(block), known_(known) {}

  // Whether the value can be computed again.
  bool add(mlir::Value value);

  llvm::SetVector<mlir::Operation*> operations;
  llvm::SetVector<mlir::BlockArgument> arguments;

 private:
  mlir::Block& block_;
  const mlir::IRMapping& known_;
};

// Results that a computation gets in addition: its end already returns them.
struct AddedResults {
  std::vector<mlir::Type> types;
  Shardings shardings;
};

// Replaces a computation by one with these operands, with those of its results that are used, and with added ones
// behind them.
mlir::Operation* with_operands(const Computation& old, mlir::ValueRange operands, const Shardings& in,
                               const AddedResults& added = {});

// The forward pass whose results a backward pass reads, if both are over the same devices.
std::optional<Computation> forward_pass_of(mlir::Operation* giver, const Computation& backward);

}  // namespace flashlift::stablehlo
