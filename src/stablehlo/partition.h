// Fused calls in modules that are compiled for several partitions. A partitioner cannot split a custom call and would
// gather all operands on each device. A call is therefore put into a manual computation of Shardy, in which each device
// computes its own batches and heads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashlift/result.h"
#include "llvm/ADT/DenseSet.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/sharding_finder.h"
#include "stablehlo/split_call.h"

namespace flashlift::stablehlo {

class Partitioner {
 public:
  // `partitions`: the number of partitions that the module is compiled for, if the module itself does not give it.
  Partitioner(Module& module, const Annotations& annotations, int64_t partitions);

  // Whether each device runs the code at an operation on its own tensors: in a module of one partition, and in a manual
  // computation.
  bool is_local(mlir::Operation* op) const;

  // How to split a found attention; no split if it is local. Errors: the reason why its calls cannot be split.
  Result<Split> plan(const LiftedAttention& found);

  // Splits Flashlift's new calls in a block.
  Status apply(const Split& split, mlir::Block& block);

 private:
  // The axes of a mesh that are not manual at an operation.
  std::vector<MeshAxis> free_axes(mlir::Operation* op, const std::string& mesh) const;
  int64_t parts(const std::string& mesh, const std::vector<std::string>& axes) const;

  const Annotations& annotations_;
  int64_t partitions_ = 1;
  Meshes meshes_;
  llvm::DenseSet<mlir::Operation*> others_;  // Flashlift's calls that existed before
};

}  // namespace flashlift::stablehlo
