// Calls of the C interface with PyTorch's tensors, as Python objects.
//
// Views of the tensors come from DLPack's C exchange interface, which PyTorch has since 2.10. A call from Python passes
// only the addresses of tensors, in one array of numbers: creating and reading a Python object for each view would take
// longer than the launch of a kernel. The build needs neither Python's nor PyTorch's headers: the functions that this
// file calls, also those of libflashlift, are passed to it once.
#include "torch_calls.h"

#include <vector>

#pragma GCC visibility push(default)
extern "C" {

// Must be called with the interpreter's lock held, and releases it while the call runs. Returns NULL with a Python
// exception set if a tensor has no view.
FlashliftError* flashlift_torch_run(const FlashliftTorchCall* call);

}  // extern "C"
#pragma GCC visibility pop

namespace flashlift::torch_calls {
namespace {

// A backward call's memory from PyTorch's allocator. When this object is destroyed, the allocator may reuse the memory
// for work that is queued later on the stream.
struct Scratch {
  const FlashliftTorchFunctions& functions;
  int device;
  bool& asked_python;
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
      scratch.asked_python = true;
      return scratch.functions.allocate(reinterpret_cast<void*>(static_cast<intptr_t>(scratch.device)), bytes);
    }
    return scratch.memory->tensor.data;
  }
};

// The views of a call's tensors. `ok` becomes false at the first tensor without a view.
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
Outcome run_unlocked(const FlashliftTorchCall& call, const DLTensor& q, Run&& run) {
  const FlashliftTorchFunctions& functions = *call.functions;
  Outcome outcome;
  Scratch scratch{.functions = functions, .device = q.device.device_id, .asked_python = outcome.asked_python};
  FlashliftRunOptions on_gpu{};
  const FlashliftRunOptions* options = call.cpu_options;
  if (q.device.device_type == kDLCUDA) {
    on_gpu.struct_size = sizeof(on_gpu);
    on_gpu.allocate = Scratch::allocate;
    on_gpu.allocate_context = &scratch;
    if (functions.exchange->current_stream(kDLCUDA, q.device.device_id, &on_gpu.stream) != 0) {
      outcome.raised = true;
      return outcome;
    }
    options = &on_gpu;
  }
  void* const thread = functions.release_lock();
  outcome.error = run(options);
  functions.take_lock(thread);
  return outcome;
}

}  // namespace

Outcome run(const FlashliftTorchCall& call) {
  constexpr size_t kOthers = 14;  // tensors other than captured ones and their gradients
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
    return {.raised = true};
  }
  return run_unlocked(call, *arguments.q, [&](const FlashliftRunOptions* options) {
    return backward ? call.functions->run_backward(call.attention, &gradients, options)
                    : call.functions->run(call.attention, &arguments, options);
  });
}

}  // namespace flashlift::torch_calls

FlashliftError* flashlift_torch_run(const FlashliftTorchCall* call) { return flashlift::torch_calls::run(*call).error; }
