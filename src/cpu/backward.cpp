#include "cpu/backward.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "cpu/backward_call.h"
#include "cpu/backward_captures.h"
#include "cpu/dropout.h"
#include "cpu/views.h"
#include "cpu/workspace.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// Below so many multiply-adds, waking other threads costs more than they save.
constexpr double kInlineWork = 200'000;

// The tasks of a phase, taken in their order by as many workers as there are threads.
class Phase {
 public:
  Phase(int64_t tasks, size_t workspace_bytes) : tasks_(tasks), workspace_bytes_(workspace_bytes) {}

  // body(task, workspace) for every task. Errors: no memory for a thread's tiles.
  template <typename Body>
  Status run(const Parallel& parallel, int64_t workers, const Body& body) {
    const std::function<void(int64_t)> work = [&](int64_t) {
      std::byte* workspace = tile_workspace().reserve(std::max<size_t>(workspace_bytes_, 1));
      if (workspace == nullptr) {
        out_of_memory_.store(true, std::memory_order_relaxed);
        return;
      }
      for (int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1)) {
        body(i, workspace);
      }
    };
    workers = std::min(workers, tasks_);
    if (workers <= 1) {
      work(0);
    } else {
      parallel.run(workers, work);
    }
    if (out_of_memory_.load() && next_.load() < tasks_) {
      return internal_error("no memory for a thread's tiles ({} bytes); the gradients are incomplete",
                            workspace_bytes_);
    }
    return {};
  }

 private:
  int64_t tasks_;
  size_t workspace_bytes_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> out_of_memory_{false};
};

class Run {
 public:
  Run(const BackwardCall& call, const Parallel& parallel, int64_t workers, CaptureGradients& captured)
      : call_(call),
        parallel_(parallel),
        workers_(workers),
        captured_(captured),
        q_tiles_(divide_up(call.sizes.q_len, call.kernel.config().q_tile)),
        chunks_(divide_up(call.sizes.kv_len, call.kernel.config().kv_chunk)),
        pairs_(call.sizes.batch * call.sizes.kv_heads) {}

  Status run() {
    FLASHLIFT_RETURN_IF_ERROR(find_all_rows());
    const BackwardArguments& wanted = call_.arguments;
    if (wanted.d_q || wanted.d_k || wanted.d_v || captured_.mode() != CaptureGradients::Mode::kNone) {
      FLASHLIFT_RETURN_IF_ERROR(multiply());
    }
    FLASHLIFT_RETURN_IF_ERROR(store_queries());
    captured_.store();
    if (wanted.d_sinks) {
      Phase phase(call_.sizes.q_heads, 0);
      return phase.run(parallel_, workers_, [&](int64_t h, std::byte*) { store_sink_gradients(call_, h); });
    }
    return {};
  }

 private:
  int64_t row_tiles() const { return call_.sizes.batch * call_.sizes.q_heads * q_tiles_; }

  Status find_all_rows() {
    const RowsLayout layout(call_);
    Phase phase(row_tiles(), layout.bytes);
    return phase.run(parallel_, workers_, [&](int64_t i, std::byte* workspace) {
      const int64_t q_begin = i % q_tiles_ * call_.kernel.config().q_tile;
      const int64_t head = i / q_tiles_;
      const int64_t b = head / call_.sizes.q_heads;
      const int64_t h = head % call_.sizes.q_heads;
      find_rows(call_, b, h, q_begin, layout, workspace);
      if (call_.dq != nullptr) {
        const int64_t rows = std::min(call_.kernel.config().q_tile, call_.sizes.q_len - q_begin);
        std::fill_n(call_.dq + call_.row_index(b, h, q_begin) * call_.d_stride, rows * call_.d_stride, 0.0f);
      }
    });
  }

  Status multiply() {
    const bool by_pairs = captured_.mode() == CaptureGradients::Mode::kNone || captured_.is_private();
    const int64_t streams = by_pairs ? pairs_ : std::min<int64_t>(pairs_, 1);
    const int64_t tasks = chunks_ * streams;
    const int64_t workers = captured_.mode() == CaptureGradients::Mode::kSerial ? 1 : workers_;
    const std::unique_ptr<std::atomic<int64_t>[]> done(new (std::nothrow) std::atomic<int64_t>[tasks]());
    if (done == nullptr) {
      return internal_error("no memory to keep account of {} tasks", tasks);
    }
    std::atomic<int64_t> committed{0};
    const ChunkLayout layout(call_);
    Phase phase(tasks, layout.bytes + static_cast<size_t>(captured_.task_floats()) * sizeof(float));
    // All first chunks, then all second ones: threads work on different heads, and seldom wait for each other's turn.
    return phase.run(parallel_, workers, [&](int64_t i, std::byte* workspace) {
      const int64_t stream = i % streams;
      float* own = reinterpret_cast<float*>(workspace + layout.bytes);
      CaptureView gradients[2 * kMaxCaptures];
      if (captured_.mode() != CaptureGradients::Mode::kNone) {
        captured_.begin_task(own, gradients);
      }
      const Progress progress{done.get() + stream, streams};
      run_chunk(call_, i / streams, by_pairs ? stream : 0, by_pairs ? stream + 1 : pairs_, progress, gradients, layout,
                workspace);
      done[static_cast<size_t>(i)].store(Progress::kDone, std::memory_order_release);
      if (captured_.is_private()) {
        while (committed.load(std::memory_order_acquire) != i) {
          std::this_thread::yield();
        }
        captured_.commit(own);
        committed.store(i + 1, std::memory_order_release);
      }
    });
  }

  Status store_queries() {
    if (!call_.arguments.d_q) {
      return {};
    }
    const TensorView& out = *call_.arguments.d_q;
    Phase phase(row_tiles(), 0);
    return phase.run(parallel_, workers_, [&](int64_t i, std::byte*) {
      const int64_t head = i / q_tiles_;
      const int64_t b = head / call_.sizes.q_heads;
      const int64_t h = head % call_.sizes.q_heads;
      const int64_t q_tile = call_.kernel.config().q_tile;
      const int64_t begin = i % q_tiles_ * q_tile;
      for (int64_t q = begin; q < std::min(begin + q_tile, call_.sizes.q_len); ++q) {
        const int64_t offset = b * out.strides[0] + h * out.strides[1] + q * out.strides[2];
        call_.kernels().store_row(
            call_.dq + call_.row_index(b, h, q) * call_.d_stride, call_.problem().head_dim, call_.problem().scale,
            static_cast<std::byte*>(out.data) + offset * static_cast<int64_t>(size_in_bytes(out.dtype)), out.dtype,
            out.strides[3]);
      }
    });
  }

  const BackwardCall& call_;
  const Parallel& parallel_;
  int64_t workers_;
  CaptureGradients& captured_;
  int64_t q_tiles_;
  int64_t chunks_;
  int64_t pairs_;
};

}  // namespace

Result<Backward> Backward::compile(const Forward& forward, const std::vector<bool>& wants_gradient,
                                   const Compiler& compiler) {
  Backward backward(forward);
  const Problem& problem = forward.problem();
  if (problem.score_mod || problem.mask_mod) {
    FLASHLIFT_ASSIGN_OR_RETURN(backward.gradient_, compiler(problem, forward.kernels().isa, wants_gradient));
  }
  return backward;
}

Status Backward::run(const BackwardArguments& arguments, const Parallel& parallel) const {
  const Problem& problem = forward_.problem();
  const AttentionArguments& forward = arguments.forward;
  const CallSizes sizes{forward.q.sizes[0], problem.q_heads, problem.kv_heads, forward.q.sizes[2], forward.k.sizes[2]};
  const int64_t lanes = forward_.kernels().lanes;
  const int64_t d_stride = round_up(problem.head_dim, lanes);
  const auto rows = static_cast<size_t>(sizes.batch * sizes.q_heads * sizes.q_len);
  const size_t dq_bytes = arguments.d_q ? rows * static_cast<size_t>(d_stride) * sizeof(float) : 0;
  std::byte* memory = call_workspace().reserve(dq_bytes + rows * sizeof(RowGradient) + 64);
  if (memory == nullptr) {
    return internal_error("no memory for {} bytes of sums", dq_bytes + rows * sizeof(RowGradient));
  }
  CaptureView captures[2 * kMaxCaptures];
  for (size_t i = 0; i < forward.captures.size(); ++i) {
    captures[i] = capture_view(forward.captures[i]);
  }
  const plan::Visits visits(problem, sizes.batch, sizes.q_len, sizes.kv_len, forward.captures);
  const BackwardCall call{.kernel = *this,
                          .arguments = arguments,
                          .sizes = sizes,
                          .visits = visits,
                          .captures = captures,
                          .rows = reinterpret_cast<RowGradient*>(memory + dq_bytes),
                          .dq = arguments.d_q ? reinterpret_cast<float*>(memory) : nullptr,
                          .d_stride = d_stride,
                          .v_stride = round_up(problem.value_dim, lanes),
                          .dropout = dropout_of(problem, forward.dropout_seed)};
  CaptureGradients captured(problem, arguments, sizes);
  FLASHLIFT_RETURN_IF_ERROR(captured.allocate());
  const double work = static_cast<double>(rows) * static_cast<double>(sizes.kv_len) *
                      static_cast<double>(problem.head_dim + problem.value_dim);
  const int64_t workers = work < kInlineWork ? 1 : std::max(1, parallel.concurrency);
  return Run(call, parallel, workers, captured).run();
}

}  // namespace flashlift::cpu
