// The fused forward pass on a CPU.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "cpu/score_function.h"
#include "cpu/tile/kernels.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

// Runs body(0) ... body(count - 1), possibly at the same time.
struct Parallel {
  int concurrency = 1;
  std::function<void(int64_t count, const std::function<void(int64_t)>& body)> run;
  const std::atomic<int32_t>* cancelled = nullptr;  // see RunOptions

  bool is_cancelled() const { return cancelled != nullptr && cancelled->load(std::memory_order_relaxed) != 0; }
};

// Tile sizes, and the division of work into tasks.
struct ForwardConfig {
  int64_t q_tile = 1056;  // query rows per task, which share each packed block of keys
  int64_t kv_tile = 128;  // keys per block; a whole number of panels for every instruction set
  int64_t splits = 0;     // number of parts of the keys for calls with few rows; 0: chosen from the problem

  // Errors: sizes that the kernels do not support.
  Status verify() const;
};

// Compiled once per problem class; immutable, so that any thread may run it.
class Forward {
 public:
  // Either compile_score or a cache of its results.
  using ScoreCompiler = std::function<Result<std::shared_ptr<const CompiledScore>>(const Problem&, Isa)>;
  static Result<Forward> compile(const Problem& problem, const TileKernels& kernels,
                                 const ScoreCompiler& compiler = compile_score, const ForwardConfig& config = {});

  // The arguments have been verified against the problem.
  // Errors: no memory for the tiles; kCancelled.
  Status run(const AttentionArguments& arguments, const Parallel& parallel) const;

  // Bytes that a call of the compiled problem's lengths takes on `concurrency` threads.
  int64_t workspace_bytes(int concurrency) const;
  std::string describe() const;
  Result<std::string> code() const;

  const Problem& problem() const { return problem_; }
  const ForwardConfig& config() const { return config_; }
  const TileKernels& kernels() const { return *kernels_; }
  // The products' bf16 kernels, or null: f32 products of operands widened when they are packed.
  // Dropout works on probabilities in f32.
  const PairKernels* pairs() const {
    return problem_.dtype == DType::kBF16 && !problem_.drops_keys() ? kernels_->pairs : nullptr;
  }
  const CompiledScore* score() const { return score_.get(); }
  // The problem's scale as two factors. A power of two multiplies one operand without rounding: the keys if they are
  // packed as f32, so that f32 queries need not be copied, and the queries otherwise. Any other scale is applied after
  // the dot products. Rounding scaled queries would shift all scores of a row by the same amount if a query's elements
  // are equal, and an average over the keys does not remove this error.
  float operand_scale() const { return operand_scale_; }
  float score_scale() const { return score_scale_; }

 private:
  Forward(const Problem& problem, const TileKernels& kernels) : problem_(problem), kernels_(&kernels) {}

  Problem problem_;
  const TileKernels* kernels_;
  ForwardConfig config_;
  float operand_scale_ = 1;
  float score_scale_ = 1;
  std::shared_ptr<const CompiledScore> score_;  // null: no programs
};

}  // namespace flashlift::cpu
