// Calls of the C interface with PyTorch's tensors: shared by the files in this folder.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>

#include "flashlift/flashlift.h"

namespace flashlift::torch_calls {

// From DLPack 1.3; Debian's header is older.
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
  int (*view_of)(void* object, DLTensor* view);  // with the interpreter's lock held
  int (*current_stream)(DLDeviceType type, int32_t device, void** stream);
};

}  // namespace flashlift::torch_calls

extern "C" {

// The functions of Python, PyTorch and libflashlift that are called.
struct FlashliftTorchFunctions {
  const flashlift::torch_calls::Exchange* exchange;
  void* (*release_lock)();  // PyEval_SaveThread
  void (*take_lock)(void* thread);
  void* (*allocate)(void* device, size_t bytes);  // used if the exchange interface cannot allocate; keeps the reason
  FlashliftError* (*run)(const FlashliftAttention*, const FlashliftArguments*, const FlashliftRunOptions*);
  FlashliftError* (*run_backward)(const FlashliftAttention*, const FlashliftBackwardArguments*,
                                  const FlashliftRunOptions*);
};

// One call. Tensors are addresses of Python's objects, or null.
struct FlashliftTorchCall {
  const FlashliftTorchFunctions* functions;
  const FlashliftAttention* attention;
  const FlashliftRunOptions* cpu_options;  // used if the tensors are on the CPU
  uint64_t dropout_seed;
  void *q, *k, *v, *out, *lse, *row_max, *residual, *sinks;
  void *d_out, *d_lse, *d_q, *d_k, *d_v, *d_sinks;  // d_out: null for a forward call
  uint64_t capture_count;
  void* captures[];  // followed, in a backward call, by as many gradients
};

}  // extern "C"

namespace flashlift::torch_calls {

struct Outcome {
  FlashliftError* error = nullptr;
  bool raised = false;        // a Python exception is set: a tensor has no view, or there is no stream
  bool asked_python = false;  // for memory, by FlashliftTorchFunctions::allocate
};

// Must be called with the interpreter's lock held, and releases it while the call runs.
Outcome run(const FlashliftTorchCall& call);

}  // namespace flashlift::torch_calls
