#include "cpu/backward.h"

#include <algorithm>
#include <memory>

#include "cpu/backward_call.h"
#include "cpu/backward_captures.h"
#include "cpu/dropout.h"
#include "cpu/tile/pairs.h"
#include "cpu/views.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// With fewer multiply-adds, waking other threads costs more than it saves.
constexpr double kInlineWork = 200'000;

// Calls body(task, memory of the worker) for every task. As many workers as there are threads take the tasks in order.
// A cancelled call also runs all of them, because tasks wait for each other.
template <typename Body>
void for_each_task(int64_t tasks, const Parallel& parallel, int64_t workers, CallMemory& memory, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t worker) {
    const WorkerMemory own = memory.worker(worker);
    for (int64_t i = next.fetch_add(1); i < tasks; i = next.fetch_add(1)) {
      body(i, own);
    }
  };
  workers = std::min(workers, tasks);
  if (workers <= 1) {
    work(0);
  } else {
    parallel.run(workers, [&work](int64_t worker) { work(worker); });  // one reference: no allocation
  }
}

class Run {
 public:
  Run(const BackwardCall& call, const Parallel& parallel, int64_t workers, CaptureGradients& captured,
      CallMemory& memory, std::atomic<int64_t>* done)
      : call_(call),
        parallel_(parallel),
        workers_(workers),
        captured_(captured),
        memory_(memory),
        done_(done),
        q_tiles_(divide_up(call.sizes.q_len, call.kernel.config().q_tile)),
        chunks_(divide_up(call.sizes.kv_len, call.kv_chunk)),
        pairs_(call.sizes.batch * call.sizes.kv_heads) {}

  Status run() {
    find_all_rows();
    const BackwardArguments& wanted = call_.arguments;
    if (call_.multiplies) {
      multiply();
    }
    if (parallel_.is_cancelled()) {
      return cancelled();
    }
    if (wanted.d_q) {
      store_queries();
    }
    captured_.store();
    if (wanted.d_sinks) {
      const int64_t heads = call_.sizes.q_heads;
      const int64_t shared = wanted.d_sinks->rank == 1 ? heads : 1;  // a task has all heads if they share sinks
      for_each_task(heads / shared, parallel_, workers_, memory_,
                    [&](int64_t i, const WorkerMemory&) { store_sink_gradients(call_, i * shared, (i + 1) * shared); });
    }
    return {};
  }

 private:
  int64_t row_tiles() const { return call_.sizes.batch * call_.sizes.q_heads * q_tiles_; }

  void find_all_rows() {
    const RowsLayout layout(call_.kernel, call_.sizes);
    for_each_task(row_tiles(), parallel_, workers_, memory_, [&](int64_t i, const WorkerMemory& memory) {
      if (parallel_.is_cancelled()) {
        return;
      }
      const int64_t q_begin = i % q_tiles_ * call_.kernel.config().q_tile;
      const int64_t head = i / q_tiles_;
      const int64_t b = head / call_.sizes.q_heads;
      const int64_t h = head % call_.sizes.q_heads;
      find_rows(call_, b, h, q_begin, layout, memory);
      if (call_.dq != nullptr) {
        const int64_t rows = std::min(call_.kernel.config().q_tile, call_.sizes.q_len - q_begin);
        std::fill_n(call_.dq + call_.row_index(b, h, q_begin) * call_.d_stride, rows * call_.d_stride, 0.0f);
      }
    });
  }

  void multiply() {
    const bool by_pairs = captured_.mode() == CaptureGradients::Mode::kNone || captured_.is_private();
    const int64_t streams = by_pairs ? pairs_ : std::min<int64_t>(pairs_, 1);
    const int64_t tasks = chunks_ * streams;
    const int64_t workers = captured_.mode() == CaptureGradients::Mode::kSerial ? 1 : workers_;
    std::uninitialized_value_construct_n(done_, tasks);
    std::atomic<int64_t> committed{0};
    const ChunkLayout layout(call_.kernel, call_.sizes, call_.kv_chunk);
    // Runs the first chunk of all heads, then the second chunk of all, and so on: threads then work on different heads,
    // and seldom wait for each other.
    for_each_task(tasks, parallel_, workers, memory_, [&](int64_t i, const WorkerMemory& memory) {
      const int64_t stream = i % streams;
      float* own = reinterpret_cast<float*>(memory.tiles + layout.bytes);
      CaptureView gradients[2 * kMaxCaptures];
      if (captured_.mode() != CaptureGradients::Mode::kNone) {
        captured_.begin_task(own, gradients);
      }
      const Progress progress{done_ + stream, streams};
      if (!parallel_.is_cancelled()) {
        run_chunk(call_, i / streams, by_pairs ? stream : 0, by_pairs ? stream + 1 : pairs_, progress, gradients,
                  layout, memory);
      }
      done_[i].store(Progress::kDone, std::memory_order_release);
      done_[i].notify_all();
      if (captured_.is_private()) {
        int64_t commits = committed.load(std::memory_order_acquire);
        while (commits != i) {
          committed.wait(commits, std::memory_order_acquire);
          commits = committed.load(std::memory_order_acquire);
        }
        captured_.commit(own);
        committed.store(i + 1, std::memory_order_release);
        committed.notify_all();
      }
    });
  }

  void store_queries() {
    const TensorView& out = *call_.arguments.d_q;
    for_each_task(row_tiles(), parallel_, workers_, memory_, [&](int64_t i, const WorkerMemory&) {
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
  CallMemory& memory_;
  std::atomic<int64_t>* done_;  // the progress of each task of multiply()
  int64_t q_tiles_;
  int64_t chunks_;
  int64_t pairs_;
};

// The number of keys of a task. A task's packed keys and their sums must fit into a second-level cache beside the
// tiles, and there must be enough tasks for all threads. This number does not change the bits of d_q and of the keys'
// gradients. It does change those of captured tensors' gradients: with these it is therefore independent of the number
// of threads.
int64_t chunk_keys(const Backward& kernel, const CallSizes& sizes, bool captured, int64_t concurrency) {
  constexpr int64_t kCacheBytes = 1 << 20;
  constexpr int64_t kTasksPerThread = 4;
  const BackwardConfig& config = kernel.config();
  if (config.chunk > 0) {
    return config.chunk;
  }
  const int64_t packed = product_pairs(kernel, sizes) == nullptr ? sizeof(float) : sizeof(Bf16);
  const int64_t key_bytes = (2 * kernel.d_stride() + kernel.v_stride()) * packed +
                            (kernel.d_stride() + kernel.v_stride()) * static_cast<int64_t>(sizeof(float));
  const double keys = static_cast<double>(sizes.batch * sizes.kv_heads) * static_cast<double>(sizes.kv_len);
  const double even = concurrency > 1 ? keys / static_cast<double>(kTasksPerThread * concurrency) : keys;
  const int64_t cached = kCacheBytes / key_bytes / config.kv_tile * config.kv_tile;
  const int64_t shared =
      round_up(static_cast<int64_t>(std::min(even, static_cast<double>(config.max_chunk))), config.kv_tile);
  return captured ? config.min_chunk : std::clamp(std::min(cached, shared), config.min_chunk, config.max_chunk);
}

// The offsets and sizes of the parts of a call's memory.
struct MemoryLayout {
  MemoryLayout(const Backward& kernel, const CallSizes& sizes, bool wants_dq, const CaptureGradients* captured,
               int64_t concurrency) {
    const Problem& problem = kernel.forward().problem();
    const BackwardConfig& config = kernel.config();
    const int64_t row_count = sizes.batch * sizes.q_heads * sizes.q_len;
    const double multiply_adds = static_cast<double>(row_count) * static_cast<double>(sizes.kv_len) *
                                 static_cast<double>(problem.head_dim + problem.value_dim);
    const int64_t row_tiles = sizes.batch * sizes.q_heads * divide_up(sizes.q_len, config.q_tile);
    concurrency = multiply_adds < kInlineWork ? 1 : std::max<int64_t>(1, concurrency);
    const bool sums_captures = captured != nullptr && captured->mode() != CaptureGradients::Mode::kNone;
    kv_chunk = chunk_keys(kernel, sizes, sums_captures, concurrency);
    const int64_t chunks = sizes.batch * sizes.kv_heads * divide_up(sizes.kv_len, kv_chunk);
    LayoutCounter shared;
    dq = shared.take(wants_dq ? row_count * kernel.d_stride() : 0, sizeof(float));
    rows = shared.take(row_count, sizeof(RowGradient));
    sole_blocks = shared.take(row_tiles, sizeof(int32_t));
    sums = shared.take(captured != nullptr ? static_cast<int64_t>(captured->bytes()) : 0, 1);
    done = shared.take(chunks, sizeof(std::atomic<int64_t>));
    LayoutCounter own;
    own.take(static_cast<int64_t>(ChunkLayout(kernel, sizes, kv_chunk).bytes), 1);
    own.take(captured != nullptr ? captured->task_floats() : 0, sizeof(float));
    memory = {.shared = shared.bytes(),
              .workers = std::clamp<int64_t>(std::max(chunks, row_tiles), 1, concurrency),
              .tiles = std::max(own.bytes(), RowsLayout(kernel, sizes).bytes),
              .visits = kMaxBlocks,
              .visited = std::max(divide_up(sizes.kv_len, config.kv_tile), divide_up(sizes.q_len, config.q_tile))};
  }

  int64_t kv_chunk;
  size_t dq;
  size_t rows;
  size_t sole_blocks;
  size_t sums;
  size_t done;
  CallMemory::Sizes memory;
};

}  // namespace

Status BackwardConfig::verify() const {
  if (chunk < 0 || chunk > max_chunk || chunk % kv_tile != 0) {
    return invalid_argument("keys of a task are {}; expected a multiple of {} up to {}", chunk, kv_tile, max_chunk);
  }
  return {};
}

Result<Backward> Backward::compile(const Forward& forward, const std::vector<bool>& wants_gradient,
                                   const Compiler& compiler, const BackwardConfig& config) {
  FLASHLIFT_RETURN_IF_ERROR(config.verify());
  Backward backward(forward, config);
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
  CaptureView captures[2 * kMaxCaptures];
  for (size_t i = 0; i < forward.captures.size(); ++i) {
    captures[i] = capture_view(forward.captures[i]);
  }
  CallLease memory;
  memory->visits.bind(problem, sizes.batch, sizes.q_len, sizes.kv_len, forward.captures);
  BackwardCall call{.kernel = *this,
                    .arguments = arguments,
                    .sizes = sizes,
                    .kv_chunk = 0,
                    .visits = memory->visits,
                    .captures = captures,
                    .rows = nullptr,
                    .sole_blocks = nullptr,
                    .multiplies = false,
                    .dq = nullptr,
                    .d_stride = d_stride(),
                    .v_stride = v_stride(),
                    .dropout = dropout_of(problem, forward)};
  CaptureGradients captured(problem, arguments, sizes);
  const MemoryLayout layout(*this, sizes, arguments.d_q.has_value(), &captured, parallel.concurrency);
  FLASHLIFT_RETURN_IF_ERROR(memory->reserve(layout.memory));
  call.kv_chunk = layout.kv_chunk;
  std::byte* shared = memory->shared();
  call.rows = reinterpret_cast<RowGradient*>(shared + layout.rows);
  call.dq = arguments.d_q ? reinterpret_cast<float*>(shared + layout.dq) : nullptr;
  call.sole_blocks = reinterpret_cast<int32_t*>(shared + layout.sole_blocks);
  call.multiplies = arguments.d_q || arguments.d_k || arguments.d_v || captured.mode() != CaptureGradients::Mode::kNone;
  captured.place(shared + layout.sums);
  auto* done = reinterpret_cast<std::atomic<int64_t>*>(shared + layout.done);
  return Run(call, parallel, layout.memory.workers, captured, *memory, done).run();
}

std::string Backward::describe(const Forward& forward, const BackwardConfig& config) {
  const std::string keys =
      config.chunk > 0 ? fmt::format("{}", config.chunk) : fmt::format("{} to {}", config.min_chunk, config.max_chunk);
  return fmt::format("{} tiles of {} queries by {} keys, {} keys a task, {} products, {}",
                     to_string(forward.kernels().isa), config.q_tile, config.kv_tile, keys,
                     forward.pairs() == nullptr ? "f32" : "bf16",
                     forward.score() == nullptr                 ? "no programs"
                     : compiles_programs(forward.kernels().isa) ? "programs compiled by LLVM"
                                                                : "programs interpreted");
}

int64_t Backward::workspace_bytes(const Forward& forward, const BackwardConfig& config, int concurrency) {
  const Problem& p = forward.problem();
  const MemoryLayout layout(Backward(forward, config), {p.batch, p.q_heads, p.kv_heads, p.q_len, p.kv_len}, true,
                            nullptr, concurrency);
  return static_cast<int64_t>(layout.memory.shared) + layout.memory.workers * static_cast<int64_t>(layout.memory.tiles);
}

}  // namespace flashlift::cpu
