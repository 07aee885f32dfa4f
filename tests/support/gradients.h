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

// A backward call that asks for all gradients there are, in tensors of random strides.
OwnedGradients make_gradients(const Problem& problem, const AttentionArguments& forward, const TensorView& d_out,
                              const std::optional<TensorView>& d_lse, Random random);

// The first gradient that is not the same to the bit in both, which lie in memory alike; empty if all are.
std::string differing_bits(const BackwardArguments& x, const BackwardArguments& y);

}  // namespace flashlift::testing
