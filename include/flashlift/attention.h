// Compiling an attention problem for a device, and running it.
//
//   Result<Attention> attention = Attention::compile(problem);
//   Status status = attention->run(arguments);
//   status = attention->run_backward(backward_arguments);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flashlift/backward.h"
#include "flashlift/device_allocator.h"
#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tuning.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

enum class DeviceKind : uint8_t { kCpu, kCuda };
const char* to_string(DeviceKind device);

// Runs the parallel work of a call. Implement it to use your own thread pool (XLA's, a server's).
class Executor {
 public:
  virtual ~Executor() = default;
  // The number of calls of `body` that may run at the same time.
  virtual int concurrency() const = 0;
  // Calls body(0) ... body(count - 1), in any order and on any thread, and returns when all have returned.
  virtual void parallel_for(int64_t count, const std::function<void(int64_t)>& body) = 0;
};

struct CompileOptions {
  DeviceKind device = DeviceKind::kCpu;
  int device_ordinal = 0;  // the GPU's number
  // Empty: the first implementation that accepts the problem. A name: this implementation, forward and backward, or an
  // error with its reason for refusal.
  std::string implementation = {};
  // False: the problem's batch and lengths are placeholders. On a GPU, the first call then compiles kernels for the
  // class of its own lengths.
  bool lengths_known = true;
  // Set it to false if you only run the backward pass: on a GPU the first forward call then compiles the forward
  // kernel. Otherwise compile() does so, and compiles the backward pass's kernels at the same time if the problem has
  // `residual`, which is for the backward pass alone. (Those for gradients of captured tensors follow when they are
  // requested.)
  bool forward_at_once = true;
  // How each pass runs. If it is empty and no implementation is named, compile() looks the problem up in the database
  // of tuning results, if the policy allows it: at the problem's lengths, or, if lengths_known is false, at the lengths
  // that were tuned last.
  Tuning forward = {};
  Tuning backward = {};
  TuningPolicy tuning = TuningPolicy::kFromEnvironment;
};

struct RunOptions {
  Executor* executor = nullptr;    // CPU: null means oneTBB
  void* stream = nullptr;          // CUDA: the caller's CUstream
  DeviceAllocator allocator = {};  // CUDA: read by the backward pass
  // Any thread may set it to a value other than 0 to end the call early, and must not reset it before the call returns
  // kCancelled; the contents of the outputs are then undefined. A call reads it before a GPU launch, and on a CPU
  // before each task of about a thousand queries of a head.
  const std::atomic<int32_t>* cancelled = nullptr;
};

// One implementation that was considered, and its answer.
struct Consideration {
  std::string implementation;
  bool accepted = false;
  std::string reason;  // the configuration if it accepted, otherwise the reason for refusal
};

// The tiles of the score matrix that a call visits, over all batches and heads.
struct TileCounts {
  int64_t q_tile = 0;
  int64_t kv_tile = 0;
  int64_t skipped = 0;
  int64_t full = 0;
  int64_t partial = 0;
};

// A kernel compiled for one problem class. Immutable, safe to call from any thread, cheap to copy.
class Attention {
 public:
  // Errors: those of verify(problem); kUnsupported with each implementation's reason if none accepts; kInternal if
  // memory runs out. (LLVM itself ends the process if memory runs out. compile() therefore reserves LLVM's memory
  // first, but another thread may use it up before LLVM runs.)
  static Result<Attention> compile(const Problem& problem, const CompileOptions& options = {});

  // Runs on the arguments' memory. batch, q_len and kv_len come from the arguments and may differ from the compiled
  // problem's. Errors: a shape, dtype or stride that the problem does not allow, and on a CPU cumulative lengths, key
  // lengths or pages that do not exist; then nothing is written.
  Status run(const AttentionArguments& arguments, const RunOptions& options = {}) const;

  // Generates the code that run_backward() needs; otherwise the first backward call does so. capture_gradients: for
  // each captured tensor, whether the calls will request its gradient; empty means none. Errors: kUnsupported with each
  // implementation's reason if none has a backward pass for the problem; a number of entries other than that of
  // problem().captures.
  Status prepare_backward(const std::vector<bool>& capture_gradients = {}) const;

  // Whether `residual` makes run_backward() faster for this problem, whether or not the problem has it. A front end
  // that will run the backward pass calls this first and then compiles the problem with or without `residual`.
  // capture_gradients: as in prepare_backward(). False if there is no backward pass. Errors: a number of entries other
  // than that of problem().captures.
  Result<bool> reads_residual(const std::vector<bool>& capture_gradients = {}) const;

  // Computes the gradients that the arguments request. prepare_backward(), or the first call that requests the
  // gradients of these captured tensors, generates the code for them, so that forward-only use costs nothing.
  // Deterministic, like run(). Errors: those of verify(problem, arguments); kUnsupported with each implementation's
  // reason if none accepts the call.
  Status run_backward(const BackwardArguments& arguments, const RunOptions& options = {}) const;

  const Problem& problem() const;
  const std::string& implementation() const;
  // Every implementation that was considered, in order, the accepted one last; for calls of the problem's lengths.
  const std::vector<Consideration>& considerations() const;
  // The same for the backward pass. None is accepted if run_backward() will fail.
  const std::vector<Consideration>& backward_considerations() const;
  // Bytes of temporary memory of one call with `concurrency` threads, besides inputs and outputs; -1 if that is
  // below 1.
  int64_t workspace_bytes(int concurrency) const;
  // The same for a backward call that requests d_q, d_k and d_v; 0 if there is no backward pass. Each gradient of a
  // captured tensor takes a few times the tensor's size in addition.
  int64_t backward_workspace_bytes(int concurrency) const;
  // The generated code, for people to read: assembly on a CPU, CUDA C++ on a GPU.
  Result<std::string> code() const;

  struct Implementation;  // one per backend, in src/runtime
  explicit Attention(std::shared_ptr<const Implementation> implementation);

 private:
  std::shared_ptr<const Implementation> implementation_;
};

// Counts the tiles that a kernel with these tile sizes visits, from the problem and the contents of its captured
// tensors. Errors: those of verify(problem) and verify_captures(); tiles without queries or keys.
Result<TileCounts> count_tiles(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_tile,
                               int64_t kv_tile);

}  // namespace flashlift

#pragma GCC visibility pop
