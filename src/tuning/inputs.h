// Random tensors for a problem: a seed gives the same numbers on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "flashlift/backward.h"
#include "flashlift/problem.h"

namespace flashlift::tuning {

enum class Layout { kBhsd, kBshd };

// Owns the memory of one call: q, k, v and float captures from the standard normal distribution; an integer capture is
// eight runs of rising ids along its last dimension where that is as long as the queries or the keys (document ids),
// otherwise from 0 to the number of keys (lengths, offsets); bool captures keep three in four.
class Inputs {
 public:
  // Fails if this machine has too little memory.
  static Result<Inputs> draw(const Problem& problem, uint64_t seed, Layout layout);
  // Only the captured tensors, with the same numbers as in draw(), for masks.
  static Result<Inputs> draw_captures(const Problem& problem, uint64_t seed);

  // Adds a gradient for each output, from the standard normal distribution, and memory for those of all inputs. Fails
  // for a problem without a backward pass, and if this machine has too little memory.
  Status add_gradients(const Problem& problem, uint64_t seed);

  const AttentionArguments& arguments() const { return arguments_; }
  // Arguments of a backward call; null without add_gradients().
  const BackwardArguments* backward() const { return backward_ ? &*backward_ : nullptr; }

 private:
  void add_captures(const Problem& problem, uint64_t seed);
  TensorView allocate(DType dtype, const std::vector<int64_t>& shape);

  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  AttentionArguments arguments_;
  std::optional<BackwardArguments> backward_;
};

}  // namespace flashlift::tuning
