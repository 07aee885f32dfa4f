// Determines how a module's values are split over devices, from annotations.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/sharding.h"

namespace flashlift::stablehlo {

// The text of one of Shardy's attributes; empty for any other.
std::string_view shardy_text(mlir::Attribute attribute);
mlir::Attribute sdy_attribute(mlir::MLIRContext* context, const std::string& text);

// What returns a manual computation's results; null if it has no body that does.
mlir::Operation* end_of(mlir::Operation* computation);

using Meshes = std::map<std::string, std::vector<MeshAxis>, std::less<>>;

// Follows values back to arguments and annotations, and returns the sharding that these give.
class ShardingFinder {
 public:
  ShardingFinder(const Annotations& annotations, const Meshes& meshes) : annotations_(annotations), meshes_(meshes) {}

  std::optional<Sharding> of(const OperandView& view);

 private:
  std::optional<Sharding> of(mlir::Value value, int depth = 0);
  std::optional<Sharding> find(mlir::Value value, int depth);
  // Of what a loop carries: as it starts or, such as zeros to which iterations write, as an iteration returns it.
  std::optional<Sharding> of_carried(mlir::Operation* loop, unsigned number, int depth);
  // Of an argument of a manual computation, within it: over the axes that are not manual.
  std::optional<Sharding> of_argument(mlir::Operation* computation, unsigned number, int depth);
  // Of a result of a manual computation.
  std::optional<Sharding> of_result(mlir::Operation* computation, unsigned number, int depth);

  const Annotations& annotations_;
  const Meshes& meshes_;
  llvm::DenseMap<mlir::Value, std::optional<Sharding>> found_;
};

}  // namespace flashlift::stablehlo
