// How the batches and heads of one attention are split over devices, and a call of it that is: in a manual computation
// of Shardy's, where each device computes its own batches and heads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashlift/result.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/sharding.h"

namespace flashlift::stablehlo {

struct Split {
  std::string mesh;
  std::vector<std::string> batch_axes, head_axes;
  int64_t batch_parts = 1, head_parts = 1;

  bool is_none() const { return batch_parts == 1 && head_parts == 1; }
};

// Whether the calls of an attention can be split so. Errors: why they cannot.
Status check_split(const LiftedAttention& found, const Split& split);

// Puts a manual computation over all axes of the split's mesh in the place of a call of Flashlift's.
Status split_call(mlir::Operation* call, const Split& split, const std::vector<MeshAxis>& mesh);

// The sizes of an operand's dimensions.
llvm::SmallVector<int64_t> shape_of(const OperandView& view);

}  // namespace flashlift::stablehlo
