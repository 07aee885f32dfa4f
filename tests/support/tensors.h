// Tensors that own their memory, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "flashlift/problem.h"

namespace flashlift::testing {

using Random = std::mt19937_64;

// The arguments of one call with the memory behind them. Movable; the views stay valid.
class OwnedArguments {
 public:
  AttentionArguments views;

  // A dense tensor of the shape, filled according to its dtype: normal floats, integers in [-8, 8) (or [0, 16)), bits.
  TensorView dense(DType dtype, std::vector<int64_t> shape, Random& random);
  // A tensor of the same shape, with any of: dimensions stored in another order, gaps between rows, reversed or
  // broadcast dimensions.
  TensorView strided(DType dtype, const std::vector<int64_t>& shape, Random& random, bool may_overlap);

 private:
  std::byte* allocate(size_t bytes);

  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// Fills every element of a view.
void fill(const TensorView& view, Random& random);

// The elements of a view as bytes, in logical order, for comparison to the bit.
std::vector<std::byte> bits_of(const TensorView& view);

// Dense arguments for a problem, including outputs; `?` sizes of captured tensors become 7. Sinks are sometimes shared
// by all heads, and cumulative lengths ascend.
OwnedArguments dense_arguments(const Problem& problem, Random& random);
// The same with strides drawn at random.
OwnedArguments strided_arguments(const Problem& problem, Random& random);

}  // namespace flashlift::testing
