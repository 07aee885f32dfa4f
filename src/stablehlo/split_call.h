// A call of one attention that is split over devices: in a manual computation of Shardy's, where each device computes
// its own batches, heads and queries.
#pragma once

#include <vector>

#include "flashlift/result.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/sharding.h"
#include "stablehlo/split.h"

namespace flashlift::stablehlo {

// Checks that the calls of an attention can be split in this way. Errors: the reason why not.
Status check_split(const LiftedAttention& found, const Split& split);

// Replaces one of Flashlift's calls by a manual computation over these axes of the split's mesh: all that are not
// manual where the call is.
Status split_call(mlir::Operation* call, const Split& split, const std::vector<MeshAxis>& manual);

// The sizes of an operand's dimensions.
llvm::SmallVector<int64_t> shape_of(const OperandView& view);

}  // namespace flashlift::stablehlo
