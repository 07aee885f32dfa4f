#include "cpu/forward.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/call_memory.h"
#include "cpu/dropout.h"
#include "cpu/forward_finish.h"
#include "cpu/forward_parts.h"
#include "cpu/forward_tile.h"
#include "cpu/partition.h"
#include "cpu/views.h"
#include "support/error.h"
#include "support/rounding.h"
#include "visits/visits.h"

namespace flashlift::cpu {
namespace {

// With fewer multiply-adds, waking other threads costs more than it saves.
constexpr double kInlineWork = 400'000;

CallSizes sizes_of(const Problem& problem, const AttentionArguments& arguments) {
  return {arguments.q.sizes[0], problem.q_heads, problem.kv_heads, arguments.q.sizes[2], kv_length(problem, arguments)};
}

// The tasks of one call. As many workers as there are threads take them in order.
class Work {
 public:
  Work(const ForwardCall& call, const Parallel& parallel, const Partition& partition, const TileLayout& layout,
       float* partials)
      : call_(call),
        parallel_(parallel),
        partition_(partition),
        layout_(layout),
        task_stride_(partition.tile_rows() * partial_stride(layout_.o_stride)),
        partials_(partials) {}

  static size_t partial_bytes(const TileLayout& layout, const Partition& partition) {
    const int64_t rows = partition.splits() > 1 ? partition.tasks() * partition.tile_rows() : 0;
    return static_cast<size_t>(rows * partial_stride(layout.o_stride)) * sizeof(float);
  }

  void work(const WorkerMemory& memory) {
    for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < partition_.tasks() && !parallel_.is_cancelled();
         i = next_.fetch_add(1, std::memory_order_relaxed)) {
      if (partials_ != nullptr) {
        run_split(call_, partition_.task(i), layout_, memory, partials_ + i * task_stride_);
      } else {
        run_task(call_, partition_.task(i), layout_, memory);
      }
    }
  }

  void combine(const WorkerMemory& memory) {
    for (int64_t i = 0; i < partition_.tasks(); i += partition_.splits()) {
      combine_splits(call_, partition_.task(i), partials_ + i * task_stride_, task_stride_, partition_.splits(),
                     layout_, memory);
    }
  }

 private:
  const ForwardCall& call_;
  const Parallel& parallel_;
  const Partition& partition_;
  const TileLayout& layout_;
  const int64_t task_stride_;
  float* partials_;
  std::atomic<int64_t> next_{0};
};

}  // namespace

Status ForwardConfig::verify() const {
  constexpr int64_t kMostKeys = 512;  // more scores would not fit into the second-level cache
  if (q_tile < kVisitRows || q_tile > ForwardConfig{}.q_tile || q_tile % kVisitRows != 0) {
    return invalid_argument("q_tile is {}; expected a multiple of {} up to {}", q_tile, kVisitRows,
                            ForwardConfig{}.q_tile);
  }
  if (kv_tile < kPanelKeys || kv_tile > kMostKeys || kv_tile % kPanelKeys != 0) {
    return invalid_argument("kv_tile is {}; expected a multiple of {} up to {}", kv_tile, kPanelKeys, kMostKeys);
  }
  if (splits < 0 || splits > kMostSplits) {
    return invalid_argument("splits is {}; expected 1 to {}, or 0 for the problem's own", splits, kMostSplits);
  }
  return {};
}

Result<Forward> Forward::compile(const Problem& problem, const TileKernels& kernels, const ScoreCompiler& compiler,
                                 const ForwardConfig& config) {
  FLASHLIFT_RETURN_IF_ERROR(config.verify());
  Forward forward(problem, kernels);
  forward.config_ = config;
  int exponent = 0;
  const float mantissa = std::frexp(problem.scale, &exponent);
  // A power of two is exact, unless it is so large or small that it overflows or loses bits of small queries.
  const bool exact = std::abs(mantissa) == 0.5f && std::abs(exponent) < 16;
  (exact ? forward.operand_scale_ : forward.score_scale_) = problem.scale;
  if (problem.score_mod || problem.mask_mod) {
    FLASHLIFT_ASSIGN_OR_RETURN(forward.score_, compiler(problem, kernels.isa));
  }
  return forward;
}

Status Forward::run(const AttentionArguments& arguments, const Parallel& parallel) const {
  const CallSizes sizes = sizes_of(problem_, arguments);
  // Computed in floating point: the sizes of broadcast tensors may have a product that overflows any integer.
  const double multiply_adds = static_cast<double>(sizes.batch * sizes.q_heads) * static_cast<double>(sizes.q_len) *
                               static_cast<double>(sizes.kv_len) *
                               static_cast<double>(problem_.head_dim + problem_.value_dim);
  const int concurrency = multiply_adds < kInlineWork ? 1 : std::max(1, parallel.concurrency);
  const Partition partition(sizes, config_, concurrency);
  if (partition.tasks() == 0) {
    return {};
  }
  CaptureView captures[2 * kMaxCaptures];  // for both programs
  for (size_t i = 0; i < arguments.captures.size(); ++i) {
    captures[i] = capture_view(arguments.captures[i]);
  }
  const TileLayout layout(*this, partition.tile_rows());
  const int64_t workers = std::min<int64_t>(concurrency, partition.tasks());
  CallLease memory;
  memory->visits.bind(problem_, sizes.batch, sizes.q_len, sizes.kv_len, arguments.captures);
  const size_t partial_bytes = Work::partial_bytes(layout, partition);
  FLASHLIFT_RETURN_IF_ERROR(memory->reserve({.shared = partial_bytes + SharedParts::bytes(problem_, partition),
                                             .workers = workers,
                                             .tiles = layout.bytes,
                                             .visits = kMaxVisitGroups,
                                             .visited = divide_up(sizes.kv_len, config_.kv_tile)}));
  const SharedParts parts(memory->shared() + partial_bytes, problem_, partition, memory->visits);
  const ForwardCall call{*this, arguments, sizes, memory->visits, captures, dropout_of(problem_, arguments), parts};
  float* partials = partition.splits() > 1 ? reinterpret_cast<float*>(memory->shared()) : nullptr;
  Work work(call, parallel, partition, layout, partials);
  if (workers == 1) {
    work.work(memory->worker(0));
  } else {
    parallel.run(workers, [&work, &memory](int64_t i) { work.work(memory->worker(i)); });
  }
  if (parallel.is_cancelled()) {
    return cancelled();
  }
  if (partials != nullptr) {
    work.combine(memory->worker(0));
  }
  return {};
}

int64_t Forward::workspace_bytes(int concurrency) const {
  const CallSizes sizes{problem_.batch, problem_.q_heads, problem_.kv_heads, problem_.q_len, problem_.kv_len};
  const Partition partition(sizes, config_, concurrency);
  if (partition.tasks() == 0) {
    return 0;
  }
  const TileLayout layout(*this, partition.tile_rows());
  return static_cast<int64_t>(layout.bytes) * std::min<int64_t>(concurrency, partition.tasks()) +
         static_cast<int64_t>(Work::partial_bytes(layout, partition) + SharedParts::bytes(problem_, partition));
}

std::string Forward::describe() const {
  return fmt::format("{} tiles of {} queries by {} keys, {} products of packed keys and values, {}",
                     to_string(kernels_->isa), config_.q_tile, config_.kv_tile, pairs() == nullptr ? "f32" : "bf16",
                     score_ == nullptr                            ? "no programs"
                     : compiles_programs(problem_, kernels_->isa) ? "programs compiled by LLVM"
                                                                  : "programs interpreted");
}

Result<std::string> Forward::code() const {
  if (score_ == nullptr) {
    return std::string("; no score or mask program: nothing is generated\n");
  }
  return score_assembly(problem_, kernels_->isa);
}

}  // namespace flashlift::cpu
