// Fused calls in modules that are compiled for several partitions. A partitioner cannot look into a custom call: left
// alone, it has each device gather all operands. So a call goes into a manual computation of Shardy's, where each
// device computes its own batches and heads.
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
  // `partitions`: as many as the module is compiled for, if it does not say so itself.
  Partitioner(Module& module, const Annotations& annotations, int64_t partitions);

  // Whether what stands at an operation is the same program on each device, with the device's own tensors: in a module
  // of one partition, and in a manual computation.
  bool is_local(mlir::Operation* op) const;

  // How a found attention is to be split; no split where it is local. Errors: why its calls cannot be.
  Result<Split> plan(const LiftedAttention& found);

  // Splits the new calls of Flashlift's in a block.
  Status apply(const Split& split, mlir::Block& block);

 private:
  int64_t parts(const std::string& mesh, const std::vector<std::string>& axes) const;

  const Annotations& annotations_;
  int64_t partitions_ = 1;
  Meshes meshes_;
  llvm::DenseSet<mlir::Operation*> others_;  // calls of Flashlift's that were there before
};

}  // namespace flashlift::stablehlo
