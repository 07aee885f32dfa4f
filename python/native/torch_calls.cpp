// Calls of the C interface with PyTorch's tensors as Python has them.
//
// Their views come from DLPack's C exchange interface, which PyTorch has since 2.10. A call from Python gives addresses
// of tensors alone, in one array of numbers: an object for each view, made and read by Python, takes longer than the
// launch of a kernel. Neither Python's headers nor PyTorch's are needed to build this; what it calls of them, and of
// libflashlift, it is given once.
#include <dlpack/dlpack.h>

#include <cstdint>
#include <vector>

#include "flashlift/flashlift.h"

namespace {

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

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// What is called of Python, PyTorch and libflashlift.
struct FlashliftTorchFunctions {
  const Exchange* exchange;
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

// With the interpreter's lock, which it gives up while the call runs. NULL with a Python exception set: a tensor has no
// view.
FlashliftError* flashlift_torch_run(const FlashliftTorchCall* call);

}  // extern "C"
#pragma GCC visibility pop

namespace {

// A backward call's memory, from PyTorch's allocator, which may give it to what is queued later on the stream as soon
// as this is gone.
struct Scratch {
  const FlashliftTorchFunctions& functions;
  int device;
  ManagedTensor* memory = nullptr;

  ~Scratch() {
    if (memory != nullptr) {
      memory->deleter(memory);
    }
  }

  static void* allocate(void* context, size_t bytes) {
    auto& scratch = *static_cast<Scratch*>(context);
    auto size = static_cast<int64_t>(bytes);
    DLTensor prototype{.data = nullptr,
                       .device = {kDLCUDA, scratch.device},
                       .ndim = 1,
                       .dtype = {kDLUInt, 8, 1},
                       .shape = &size,
                       .strides = nullptr,
                       .byte_offset = 0};
    const auto forget = [](void*, const char*, const char*) {};
    if (scratch.functions.exchange->allocate(&prototype, &scratch.memory, nullptr, forget) != 0) {
      scratch.memory = nullptr;
      return scratch.functions.allocate(reinterpret_cast<void*>(static_cast<intptr_t>(scratch.device)), bytes);
    }
    return scratch.memory->tensor.data;
  }
};

// The views of a call's tensors. `ok` becomes false at the first that has none.
class Views {
 public:
  Views(const FlashliftTorchCall& call, size_t most) : exchange_(*call.functions->exchange), views_(most) {}

  const DLTensor* of(void* object) {
    if (object == nullptr || !ok) {
      return nullptr;
    }
    DLTensor& view = views_[count_++];
    ok = exchange_.view_of(object, &view) == 0;
    return &view;
  }

  bool ok = true;

 private:
  const Exchange& exchange_;
  std::vector<DLTensor> views_;
  size_t count_ = 0;
};

// Calls run(options) without the interpreter's lock.
template <typename Run>
FlashliftError* run_unlocked(const FlashliftTorchCall& call, const DLTensor& q, Run&& run) {
  const FlashliftTorchFunctions& functions = *call.functions;
  Scratch scratch{.functions = functions, .device = q.device.device_id};
  FlashliftRunOptions on_gpu{};
  const FlashliftRunOptions* options = call.cpu_options;
  if (q.device.device_type == kDLCUDA) {
    on_gpu.struct_size = sizeof(on_gpu);
    on_gpu.allocate = Scratch::allocate;
    on_gpu.allocate_context = &scratch;
    if (functions.exchange->current_stream(kDLCUDA, q.device.device_id, &on_gpu.stream) != 0) {
      return nullptr;
    }
    options = &on_gpu;
  }
  void* const thread = functions.release_lock();
  FlashliftError* const error = run(options);
  functions.take_lock(thread);
  return error;
}

}  // namespace

FlashliftError* flashlift_torch_run(const FlashliftTorchCall* given) {
  const FlashliftTorchCall& call = *given;
  constexpr size_t kOthers = 14;  // tensors that are not captured ones, nor their gradients
  const bool backward = call.d_out != nullptr;
  const size_t captures = call.capture_count;
  Views views(call, kOthers + (backward ? 2 : 1) * captures);
  std::vector<const DLTensor*> captured((backward ? 2 : 1) * captures);
  for (size_t i = 0; i < captured.size(); ++i) {
    captured[i] = views.of(call.captures[i]);
  }
  const FlashliftArguments arguments{.struct_size = sizeof(FlashliftArguments),
                                     .q = views.of(call.q),
                                     .k = views.of(call.k),
                                     .v = views.of(call.v),
                                     .out = views.of(call.out),
                                     .captures = captured.data(),
                                     .capture_count = captures,
                                     .sinks = views.of(call.sinks),
                                     .lse = views.of(call.lse),
                                     .row_max = views.of(call.row_max),
                                     .dropout_seed = call.dropout_seed,
                                     .residual = views.of(call.residual)};
  FlashliftBackwardArguments gradients{};
  if (backward) {
    gradients = {.struct_size = sizeof(FlashliftBackwardArguments),
                 .forward = &arguments,
                 .d_out = views.of(call.d_out),
                 .d_lse = views.of(call.d_lse),
                 .d_q = views.of(call.d_q),
                 .d_k = views.of(call.d_k),
                 .d_v = views.of(call.d_v),
                 .d_captures = captured.data() + captures,
                 .d_sinks = views.of(call.d_sinks)};
  }
  if (!views.ok) {
    return nullptr;
  }
  return run_unlocked(call, *arguments.q, [&](const FlashliftRunOptions* options) {
    return backward ? call.functions->run_backward(call.attention, &gradients, options)
                    : call.functions->run(call.attention, &arguments, options);
  });
}
