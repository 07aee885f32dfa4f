// Gradients that own their memory, for tests.
#pragma once

#include <optional>
#include <string>

#include "flashlift/backward.h"
#include "support/tensors.h"

namespace flashlift::testing {

struct OwnedGradients {
  OwnedArguments memory;
  BackwardArguments arguments;
};

// A backward call that requests all gradients that exist, in tensors of random strides.
OwnedGradients make_gradients(const Problem& problem, const AttentionArguments& forward, const TensorView& d_out,
                              const std::optional<TensorView>& d_lse, Random random);

// The name of the first gradient whose bits differ between x and y, whose tensors have the same layouts; empty if none
// differs.
std::string differing_bits(const BackwardArguments& x, const BackwardArguments& y, bool compares_d_q = true);

}  // namespace flashlift::testing
