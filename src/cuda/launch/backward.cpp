#include "cuda/launch/backward.h"

#include <algorithm>
#include <future>

#include "cuda/launch/backward/captures.h"
#include "cuda/launch/backward/postprocess.h"
#include "cuda/launch/backward/preprocess.h"
#include "cuda/launch/params.h"
#include "problem/sinks.h"
#include "support/beside.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

// Columns are neighbours, and pairs of them aligned.
bool has_paired_columns(const TensorView& view) {
  const size_t pair = 2 * size_in_bytes(view.dtype);
  bool fits = reinterpret_cast<uintptr_t>(view.data) % pair == 0 && view.strides[3] == 1;
  for (int d = 0; d < 3; ++d) {
    fits = fits && (view.sizes[d] <= 1 || view.strides[d] % 2 == 0);
  }
  return fits;
}

void fill_gradient(const std::optional<TensorView>& gradient, void*& data, Strides& strides, int& paired) {
  data = gradient ? gradient->data : nullptr;
  strides = gradient ? strides_of(*gradient) : Strides{};
  paired = gradient && has_paired_columns(*gradient);
}

// What the caller's tensors say; what lies in the call's own memory is placed later.
void fill_backward_params(const BackwardArguments& arguments, BackwardParams& params) {
  params.only_if[0] = params.only_if[1] = nullptr;
  params.d_lse = arguments.d_lse ? static_cast<const float*>(arguments.d_lse->data) : nullptr;
  for (int d = 0; d < 3; ++d) {
    params.d_lse_strides[d] = arguments.d_lse ? arguments.d_lse->strides[d] : 0;
  }
  fill_gradient(arguments.d_q, params.d_q, params.d_q_strides, params.paired_d_q);
  params.vector_d_q = arguments.d_q && has_vector_rows(*arguments.d_q);
  fill_gradient(arguments.d_k, params.d_k, params.d_k_strides, params.paired_d_k);
  params.vector_d_k = arguments.d_k && has_vector_rows(*arguments.d_k);
  fill_gradient(arguments.d_v, params.d_v, params.d_v_strides, params.paired_d_v);
  params.vector_d_v = arguments.d_v && has_vector_rows(*arguments.d_v);
  params.d_sinks = arguments.d_sinks ? static_cast<float*>(arguments.d_sinks->data) : nullptr;
  if (arguments.d_sinks) {
    params.d_sink_strides[0] = problem::sink_offset(*arguments.d_sinks, 1, 0);
    params.d_sink_strides[1] = problem::sink_offset(*arguments.d_sinks, 0, 1);
  }
}

bool wants(const std::vector<bool>& gradients) { return std::ranges::find(gradients, true) != gradients.end(); }

}  // namespace

struct Backward::State {
  State(const Driver& d, const Problem& of, const Device& on, const BackwardConfig& with)
      : driver(d), device(on), problem(of), config(with), preprocess(of, on, row_statistics(with)), memory(d) {}

  Status compile_captures(const std::vector<bool>& wants_gradient, const KernelCompiler& compile_kernel) {
    FLASHLIFT_ASSIGN_OR_RETURN(captures,
                               CaptureGradients::compile(problem, device, config, wants_gradient, compile_kernel));
    return {};
  }

  const Driver& driver;
  Device device;
  Problem problem;
  BackwardConfig config;
  Preprocess preprocess;
  std::unique_ptr<const BackwardMain> main;
  std::unique_ptr<const CaptureGradients> captures;  // null: no gradients of captured tensors
  Postprocess postprocess;
  mutable StreamMemoryPool memory;  // of calls that are captured into graphs
};

const BackwardConfig& Backward::config() const { return state_->config; }

Result<Backward> Backward::compile(const Problem& problem, const Device& device, BackwardKind kind,
                                   const std::vector<bool>& wants_gradient, const KernelCompiler& compile_kernel) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  FLASHLIFT_ASSIGN_OR_RETURN(const BackwardConfig config, choose_backward_config(problem, kind, device.architecture));
  auto state = std::make_shared<State>(*driver, problem, device, config);
  auto before = begin_beside([&] { return state->preprocess.compile(compile_kernel); });
  std::future<Status> captures;
  if (wants(wants_gradient)) {
    captures = begin_beside([&] { return state->compile_captures(wants_gradient, compile_kernel); });
  }
  auto after = begin_beside([&] {
    return state->postprocess.compile(problem, device, row_statistics(config), wants_gradient, compile_kernel);
  });
  FLASHLIFT_ASSIGN_OR_RETURN(state->main, compile_main(problem, device, config, compile_kernel));
  FLASHLIFT_RETURN_IF_ERROR(before.get());
  if (captures.valid()) {
    FLASHLIFT_RETURN_IF_ERROR(captures.get());
  }
  FLASHLIFT_RETURN_IF_ERROR(after.get());
  return Backward(std::move(state));
}

Status Backward::run(const BackwardArguments& arguments, CuStream stream, const DeviceAllocator& allocator) const {
  const State& state = *state_;
  FLASHLIFT_ASSIGN_OR_RETURN(const CurrentContext context,
                             CurrentContext::of(state.driver, stream, state.device.handle));
  BackwardCall call{.driver = state.driver, .problem = state.problem, .arguments = arguments, .stream = stream};
  FLASHLIFT_RETURN_IF_ERROR(fill_params(state.problem, arguments.forward, call.forward));
  fill_backward_params(arguments, call.backward);
  FLASHLIFT_RETURN_IF_ERROR(state.main->accepts(call));
  if (state.captures != nullptr) {
    FLASHLIFT_RETURN_IF_ERROR(state.captures->accepts(call));
  }
  Layout layout;
  const Preprocess::Places places = state.preprocess.lay_out(call.forward, layout);
  CaptureSums sums(call, state.captures.get(), layout);
  const int64_t main_at = layout.take(main_workspace_bytes(state.config, state.device, call.forward));
  const int64_t captures_at =
      state.captures == nullptr ? 0 : layout.take(state.captures->workspace_bytes(call.forward));
  FLASHLIFT_ASSIGN_OR_RETURN(const CallMemory memory,
                             CallMemory::of(state.driver, state.memory, allocator, context, stream, layout.bytes()));
  state.preprocess.place(places, memory.pointer(), call);
  sums.place(call, memory.pointer());
  FLASHLIFT_RETURN_IF_ERROR(state.preprocess.launch(places, memory.pointer(), call));
  FLASHLIFT_RETURN_IF_ERROR(sums.clear(call));
  FLASHLIFT_RETURN_IF_ERROR(state.main->launch(call, memory.pointer() + static_cast<CuPointer>(main_at)));
  if (state.captures != nullptr) {
    FLASHLIFT_RETURN_IF_ERROR(state.captures->launch(call, memory.pointer() + static_cast<CuPointer>(captures_at)));
  }
  return state.postprocess.launch(call, sums);
}

Result<int64_t> Backward::workspace_bytes(const Problem& problem, const Device& device, BackwardKind kind) {
  FLASHLIFT_ASSIGN_OR_RETURN(const BackwardConfig config, choose_backward_config(problem, kind, device.architecture));
  ForwardParams params;
  fill_lengths(problem, params);
  Layout layout;
  Preprocess(problem, device, row_statistics(config)).lay_out(params, layout);
  layout.take(main_workspace_bytes(config, device, params));
  return layout.bytes();
}

}  // namespace flashlift::cuda
