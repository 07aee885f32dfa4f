// What the backward kernels are specialised for, and how their tiles are chosen.
#pragma once

#include "cuda/emit/forward_config.h"

namespace flashlift::cuda {

struct BackwardConfig {
  ForwardConfig queries;  // of the kernels that work on queries
  ForwardConfig keys;     // of the one that works on keys: it has q_tile keys a block, and kv_tile queries at a time
  int chunks = 1;         // blocks among which the columns of d_k and d_v are divided
};

// The portable kernels', for an architecture of at least 80. Errors: kUnsupported with the reason.
Result<BackwardConfig> choose_backward_config(const Problem& problem, int architecture);

std::string describe(const BackwardConfig& config);

// Preprocessor definitions, one -D option each.
std::vector<std::string> query_definitions(const BackwardConfig& config);
std::vector<std::string> key_definitions(const BackwardConfig& config);

}  // namespace flashlift::cuda
