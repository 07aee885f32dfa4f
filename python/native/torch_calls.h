// Calls of the C interface with PyTorch's tensors: what the files beside this one share.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>

#include "flashlift/flashlift.h"

namespace flashlift::torch_calls {

// Of DLPack 1.3, which Debian's header is older than.
struct ManagedTensor {
  uint32_t version[2];
  void* manager_ctx;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  DLTensor tensor;
};

struct Exchange {
  uint32_t version[2];
  void* previous;
  int (*allocate)(DLTensor* prototype, ManagedTensor** made, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*from_object)(void* object, ManagedTensor** made);
  int (*to_object)(ManagedTensor* tensor, void** object);
  int (*view_of)(void* object, DLTensor* view);  // with the interpreter's lock
  int (*current_stream)(DLDeviceType type, int32_t device, void** stream);
};

}  // namespace flashlift::torch_calls

extern "C" {

// What is called of Python, PyTorch and libflashlift.
struct FlashliftTorchFunctions {
  const flashlift::torch_calls::Exchange* exchange;
  void* (*release_lock)();  // PyEval_SaveThread
  void (*take_lock)(void* thread);
  void* (*allocate)(void* device, size_t bytes);  // where the exchange interface has no memory: it keeps the reason
  FlashliftError* (*run)(const FlashliftAttention*, const FlashliftArguments*, const FlashliftRunOptions*);
  FlashliftError* (*run_backward)(const FlashliftAttention*, const FlashliftBackwardArguments*,
                                  const FlashliftRunOptions*);
};

// One call: tensors are addresses of Python's objects, or null.
struct FlashliftTorchCall {
  const FlashliftTorchFunctions* functions;
  const FlashliftAttention* attention;
  const FlashliftRunOptions* cpu_options;  // read if the tensors lie on the CPU
  uint64_t dropout_seed;
  void *q, *k, *v, *out, *lse, *row_max, *residual, *sinks;
  void *d_out, *d_lse, *d_q, *d_k, *d_v, *d_sinks;  // d_out: null for a forward call
  uint64_t capture_count;
  void* captures[];  // and behind them, in a backward call, as many gradients
};

}  // extern "C"

namespace flashlift::torch_calls {

struct Outcome {
  FlashliftError* error = nullptr;
  bool raised = false;        // a Python exception is set: a tensor has no view, or there is no stream
  bool asked_python = false;  // for memory, by FlashliftTorchFunctions::allocate
};

// With the interpreter's lock, which it gives up while the call runs.
Outcome run(const FlashliftTorchCall& call);

}  // namespace flashlift::torch_calls
