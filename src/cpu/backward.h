// The fused backward pass on a CPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpu/forward.h"
#include "cpu/score_function.h"
#include "flashlift/backward.h"
#include "support/rounding.h"

namespace flashlift::cpu {

struct BackwardConfig {
  int64_t q_tile = 96;
  int64_t kv_tile = 128;
  // The bounds of the keys per task, in whole tiles. Every task reads all queries and d_out, and adds to all of d_q.
  int64_t min_chunk = 256;
  int64_t max_chunk = 1024;
  int64_t chunk = 0;  // keys per task; 0: chosen from caches and threads, within the two bounds above

  // Errors: sizes that the kernels do not support.
  Status verify() const;
};

// Compiled once per problem class and set of captured tensors with gradients; immutable.
class Backward {
 public:
  // Either compile_gradient or a cache of its results.
  using Compiler =
      std::function<Result<std::shared_ptr<const CompiledGradient>>(const Problem&, Isa, const std::vector<bool>&)>;
  static Result<Backward> compile(const Forward& forward, const std::vector<bool>& wants_gradient,
                                  const Compiler& compiler = compile_gradient, const BackwardConfig& config = {});

  // The arguments have been verified against the problem. Errors: no memory.
  Status run(const BackwardArguments& arguments, const Parallel& parallel) const;

  const Forward& forward() const { return forward_; }
  const CompiledGradient* gradient() const { return gradient_.get(); }
  const BackwardConfig& config() const { return config_; }
  // The row strides of sums with head_dim and with value_dim columns, in floats: whole vectors.
  int64_t d_stride() const { return round_up(forward_.problem().head_dim, int64_t{forward_.kernels().lanes}); }
  int64_t v_stride() const { return round_up(forward_.problem().value_dim, int64_t{forward_.kernels().lanes}); }
  // The memory of a call of the problem's own sizes for d_q, d_k and d_v, without inputs and outputs.
  static int64_t workspace_bytes(const Forward& forward, const BackwardConfig& config, int concurrency);
  // A readable text of how a backward pass with the kernels of `forward` runs.
  static std::string describe(const Forward& forward, const BackwardConfig& config);

 private:
  Backward(const Forward& forward, const BackwardConfig& config) : forward_(forward), config_(config) {}

  Forward forward_;
  BackwardConfig config_;
  std::shared_ptr<const CompiledGradient> gradient_;  // null: no programs
};

}  // namespace flashlift::cpu
