// Compiling an attention problem for a device, and running it.
//
//   Result<Attention> attention = Attention::compile(problem);
//   Status status = attention->run(arguments);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift {

enum class DeviceKind : uint8_t { kCpu, kCuda };
const char* to_string(DeviceKind device);

// Where a call's parallel work runs. Implement it to lend a thread pool of your own (XLA's, a server's).
class Executor {
 public:
  virtual ~Executor() = default;
  // How many calls of `body` may run at the same time.
  virtual int concurrency() const = 0;
  // Calls body(0) ... body(count - 1), in any order and on any thread, and returns when all have returned.
  virtual void parallel_for(int64_t count, const std::function<void(int64_t)>& body) = 0;
};

struct CompileOptions {
  DeviceKind device = DeviceKind::kCpu;
  int device_ordinal = 0;      // which GPU
  std::string implementation;  // empty: the first that accepts the problem; a name: that one, or its reason why not
};

struct RunOptions {
  Executor* executor = nullptr;  // CPU: null means oneTBB
  void* stream = nullptr;        // CUDA: the caller's CUstream
};

// One implementation that was asked, and what it said.
struct Consideration {
  std::string implementation;
  bool accepted = false;
  std::string reason;  // the configuration when accepted, otherwise why not
};

// Tiles of the score plane that a call visits, over all batches and heads.
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
  // Errors: what verify(problem) says; kUnsupported with each implementation's reason where none accepts.
  static Result<Attention> compile(const Problem& problem, const CompileOptions& options = {});

  // Runs on the arguments' memory. batch, q_len and kv_len may differ from the compiled problem's: they are taken from
  // the arguments. Errors: a shape, dtype or stride that the problem does not allow; nothing is written then.
  Status run(const AttentionArguments& arguments, const RunOptions& options = {}) const;

  const Problem& problem() const;
  const std::string& implementation() const;
  // Every implementation asked, in order, the accepted one last.
  const std::vector<Consideration>& considerations() const;
  // Bytes of temporary memory one call uses, besides inputs and outputs, with `concurrency` threads.
  int64_t workspace_bytes(int concurrency) const;
  // The generated code, for people to read: assembly on a CPU, CUDA C++ on a GPU.
  Result<std::string> code() const;

  struct Implementation;  // one per backend, in src/runtime
  explicit Attention(std::shared_ptr<const Implementation> implementation);

 private:
  std::shared_ptr<const Implementation> implementation_;
};

// Which tiles a kernel with these tile sizes visits, from the problem and the contents of its captured tensors.
Result<TileCounts> count_tiles(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_tile,
                               int64_t kv_tile);

}  // namespace flashlift

#pragma GCC visibility pop
