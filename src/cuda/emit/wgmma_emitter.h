// Wrappers over the warpgroup products of one kernel configuration.
#pragma once

#include <string>

#include "cuda/emit/backward_config.h"

namespace flashlift::cuda {

// Text of the header wgmma.cuh: wgmma_qk and wgmma_pv for the configuration's tile. It is generated, because one
// instruction names up to 128 registers, and its shape is part of its name: as templates, each of 32 shapes would take
// a page.
std::string emit_wgmma(const ForwardConfig& config);

// The same for a backward kernel: wgmma_qk and wgmma_dp compute products of scores, wgmma_pv computes sums of head_dim
// and of value_dim columns, and in the fused kernel wgmma_dq computes 64 rows and 32 or 64 columns of d_q.
std::string emit_backward_wgmma(const Sm90BackwardKernel& kernel);

}  // namespace flashlift::cuda
