#include "cuda/launch/backward.h"

#include <algorithm>

#include "cuda/emit/kernel_source.h"
#include "cuda/kernels/common/backward_params.h"
#include "cuda/launch/bounds_pass.h"
#include "cuda/launch/params.h"
#include "problem/sinks.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int kSinkThreads = 256;
constexpr int kElementThreads = 256;
constexpr int64_t kMostElementBlocks = 4096;
constexpr int64_t kPieceAlignment = 256;
constexpr int64_t kVectorBytes = 16;

// Memory of the stream-ordered allocator, given back behind what is launched while this lives.
class StreamAllocation {
 public:
  static Result<StreamAllocation> of(const Driver& driver, int64_t bytes, CuStream stream) {
    StreamAllocation made(driver, stream);
    if (bytes > 0) {
      FLASHLIFT_RETURN_IF_ERROR(
          driver.check(driver.cuMemAllocAsync(&made.pointer_, static_cast<size_t>(bytes), stream), "cuMemAllocAsync"));
    }
    return made;
  }
  ~StreamAllocation() {
    if (pointer_ != 0) {
      driver_.cuMemFreeAsync(pointer_, stream_);
    }
  }
  StreamAllocation(StreamAllocation&& other) noexcept
      : driver_(other.driver_), stream_(other.stream_), pointer_(std::exchange(other.pointer_, 0)) {}
  StreamAllocation& operator=(StreamAllocation&&) = delete;

  CuPointer pointer() const { return pointer_; }

 private:
  StreamAllocation(const Driver& driver, CuStream stream) : driver_(driver), stream_(stream) {}
  const Driver& driver_;
  CuStream stream_;
  CuPointer pointer_ = 0;
};

// The products take d_out in the inputs' type only.
bool converts_d_out(const Problem& problem) { return problem.out_dtype != problem.dtype; }

// Columns are neighbours, and pairs of them aligned.
bool has_paired_columns(const TensorView& view) {
  const size_t pair = 2 * size_in_bytes(view.dtype);
  bool fits = reinterpret_cast<uintptr_t>(view.data) % pair == 0 && view.strides[3] == 1;
  for (int d = 0; d < 3; ++d) {
    fits = fits && (view.sizes[d] <= 1 || view.strides[d] % 2 == 0);
  }
  return fits;
}

bool is_dense_f32(const TensorView& view) {
  int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.sizes[d] > 1 && view.strides[d] != stride) {
      return false;
    }
    stride *= view.sizes[d];
  }
  return view.dtype == DType::kF32;
}

// The names that flashlift_store_capture has for element types.
int element_type(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2; }

// Where the pieces of a call's memory lie.
struct Layout {
  int64_t bytes = 0;
  int64_t take(int64_t count) {
    const int64_t at = bytes;
    bytes += round_up(count, kPieceAlignment);
    return at;
  }
};

unsigned element_blocks(int64_t count) {
  return static_cast<unsigned>(std::min(divide_up(count, int64_t{kElementThreads}), kMostElementBlocks));
}

}  // namespace

struct Backward::State {
  State(const Driver& d, const Device& on) : driver(d), device(on) {}

  const Driver& driver;
  Device device;
  Problem problem;
  BackwardConfig config;
  bool captures = false;
  std::shared_ptr<const LoadedLibrary> query_library;
  std::shared_ptr<const LoadedLibrary> key_library;
  CuKernel rows = nullptr;
  CuKernel queries = nullptr;
  CuKernel keys = nullptr;
  CuKernel convert_d_out = nullptr;
  CuKernel sinks = nullptr;
  CuKernel store_capture = nullptr;
  BoundsPasses bounds;
};

namespace {

// One call: its parameters, and the launches in their order.
class Call {
 public:
  Call(const Driver& driver, const Problem& problem, const BackwardConfig& config, const BackwardArguments& arguments,
       CuStream stream)
      : driver_(driver), problem_(problem), config_(config), arguments_(arguments), stream_(stream) {}

  ForwardParams params;
  BackwardParams backward;

  Status prepare() {
    const AttentionArguments& forward = arguments_.forward;
    FLASHLIFT_RETURN_IF_ERROR(fill_params(problem_, forward, params));
    params.q_tiles = static_cast<int>(divide_up(params.q_len, config_.queries.q_tile));
    query_blocks_ = int64_t{params.q_tiles} * params.batch * params.q_heads;
    params.heads_per_section = params.group;  // heads that share keys stay together
    backward.kv_tiles = static_cast<int>(divide_up(params.kv_len, config_.keys.q_tile));
    key_blocks_ = int64_t{backward.kv_tiles} * params.batch * params.kv_heads;
    if (std::max(query_blocks_, key_blocks_) > INT32_MAX / 2) {
      return unsupported("{} tiles are more than one launch numbers; split the batch",
                         std::max(query_blocks_, key_blocks_));
    }
    params.total_tiles = static_cast<int>(query_blocks_);
    rows_ = int64_t{params.batch} * params.q_heads * params.q_len;
    rows_at_ = layout_.take(rows_ * static_cast<int64_t>(sizeof(RowGradient)));
    if (converts_d_out(problem_)) {
      low_flag_at_ = layout_.take(sizeof(int));
      high_at_ = layout_.take(d_out_bytes());
      low_at_ = layout_.take(d_out_bytes());
    }
    for (size_t i = 0; i < arguments_.d_captures.size(); ++i) {
      const std::optional<TensorView>& gradient = arguments_.d_captures[i];
      const bool sums = gradient && !is_dense_f32(*gradient);
      sums_at_.push_back(sums ? layout_.take(gradient->element_count() * static_cast<int64_t>(sizeof(float))) : 0);
    }
    return {};
  }

  int64_t take_bounds(int64_t bytes) { return layout_.take(bytes); }
  int64_t bytes() const { return layout_.bytes; }

  void place(CuPointer memory) {
    memory_ = memory;
    backward.rows = at<RowGradient>(rows_at_);
    fill_d_out();
    backward.d_lse = arguments_.d_lse ? static_cast<const float*>(arguments_.d_lse->data) : nullptr;
    for (int d = 0; d < 3; ++d) {
      backward.d_lse_strides[d] = arguments_.d_lse ? arguments_.d_lse->strides[d] : 0;
    }
    fill_gradient(arguments_.d_q, backward.d_q, backward.d_q_strides, backward.paired_d_q);
    fill_gradient(arguments_.d_k, backward.d_k, backward.d_k_strides, backward.paired_d_k);
    fill_gradient(arguments_.d_v, backward.d_v, backward.d_v_strides, backward.paired_d_v);
    backward.d_sinks = arguments_.d_sinks ? static_cast<float*>(arguments_.d_sinks->data) : nullptr;
    if (arguments_.d_sinks) {
      backward.d_sink_strides[0] = problem::sink_offset(*arguments_.d_sinks, 1, 0);
      backward.d_sink_strides[1] = problem::sink_offset(*arguments_.d_sinks, 0, 1);
    }
    for (size_t i = 0; i < problem_.captures.size(); ++i) {
      fill_capture(i);
    }
  }

  Status convert_d_out(CuKernel kernel) {
    FLASHLIFT_RETURN_IF_ERROR(clear(memory_ + static_cast<CuPointer>(low_flag_at_), sizeof(int)));
    return launch(kernel, element_blocks(rows_ * problem_.value_dim), 1, kElementThreads, 0);
  }

  Status work_on_queries(CuKernel kernel) {
    return launch(kernel, static_cast<unsigned>(query_blocks_), 1, config_.queries.threads,
                  config_.queries.shared_bytes);
  }

  Status work_on_keys(CuKernel kernel) {
    return launch(kernel, static_cast<unsigned>(key_blocks_), static_cast<unsigned>(config_.chunks),
                  config_.keys.threads, config_.keys.shared_bytes);
  }

  Status sum_sinks(CuKernel kernel) {
    const int64_t heads = arguments_.d_sinks->rank == 1 ? 1 : problem_.q_heads;
    return launch(kernel, static_cast<unsigned>(heads * problem_.sinks), 1, kSinkThreads, 0);
  }

  Status clear_captures() {
    for (size_t i = 0; i < arguments_.d_captures.size(); ++i) {
      if (const std::optional<TensorView>& gradient = arguments_.d_captures[i]; gradient) {
        FLASHLIFT_RETURN_IF_ERROR(clear(sums_of(i), gradient->element_count() * static_cast<int64_t>(sizeof(float))));
      }
    }
    return {};
  }

  Status store_captures(CuKernel kernel) {
    for (size_t i = 0; i < arguments_.d_captures.size(); ++i) {
      const std::optional<TensorView>& gradient = arguments_.d_captures[i];
      if (!gradient || is_dense_f32(*gradient) || gradient->element_count() == 0) {
        continue;
      }
      CaptureArgument to{.data = gradient->data, .bounds = nullptr, .sizes = {}, .strides = {}};
      for (int d = 0; d < gradient->rank; ++d) {
        to.sizes[d] = static_cast<int>(gradient->sizes[d]);
        to.strides[d] = gradient->strides[d];
      }
      CuPointer from = sums_of(i);
      int rank = gradient->rank;
      int type = element_type(gradient->dtype);
      long long count = gradient->element_count();
      void* parameters[] = {&from, &to, &rank, &type, &count};
      FLASHLIFT_RETURN_IF_ERROR(
          driver_.check(driver_.cuLaunchKernel(kernel, element_blocks(count), 1, 1, kElementThreads, 1, 1, 0, stream_,
                                               parameters, nullptr),
                        "cuLaunchKernel"));
    }
    return {};
  }

 private:
  template <typename T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(memory_ + static_cast<CuPointer>(offset));
  }

  // Of d_out in the inputs' type: rows of whole 16 bytes.
  int64_t d_out_columns() const {
    return round_up(problem_.value_dim, kVectorBytes / static_cast<int64_t>(size_in_bytes(problem_.dtype)));
  }
  int64_t d_out_bytes() const { return rows_ * d_out_columns() * static_cast<int64_t>(size_in_bytes(problem_.dtype)); }

  void fill_d_out() {
    const TensorView& d_out = arguments_.d_out;
    backward.given_d_out = d_out.data;
    backward.given_d_out_strides = strides_of(d_out);
    if (!converts_d_out(problem_)) {
      backward.d_out = d_out.data;
      backward.d_out_low = nullptr;
      backward.d_out_has_low = nullptr;
      backward.d_out_strides = strides_of(d_out);
      backward.vector_d_out = has_vector_rows(d_out);
      return;
    }
    backward.d_out = at<void>(high_at_);
    backward.d_out_low = at<void>(low_at_);
    backward.d_out_has_low = at<int>(low_flag_at_);
    const long long row = d_out_columns();
    backward.d_out_strides = {row * params.q_len * params.q_heads, row * params.q_len, row, 1};
    backward.vector_d_out = problem_.value_dim == row;
  }

  static void fill_gradient(const std::optional<TensorView>& gradient, void*& data, Strides& strides, int& paired) {
    data = gradient ? gradient->data : nullptr;
    strides = gradient ? strides_of(*gradient) : Strides{};
    paired = gradient && has_paired_columns(*gradient);
  }

  CuPointer sums_of(size_t i) const {
    const TensorView& gradient = *arguments_.d_captures[i];
    return is_dense_f32(gradient) ? reinterpret_cast<CuPointer>(gradient.data)
                                  : memory_ + static_cast<CuPointer>(sums_at_[i]);
  }

  void fill_capture(size_t i) {
    CaptureArgument& sums = backward.gradients[i];
    const bool wanted = i < arguments_.d_captures.size() && arguments_.d_captures[i];
    sums.data = wanted ? reinterpret_cast<const void*>(sums_of(i)) : nullptr;
    sums.bounds = nullptr;
    const TensorView& view = arguments_.forward.captures[i];
    long long stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      sums.sizes[d] = static_cast<int>(view.sizes[d]);
      sums.strides[d] = stride;
      stride *= view.sizes[d];
    }
  }

  Status clear(CuPointer pointer, int64_t bytes) {
    return bytes == 0 ? Status()
                      : driver_.check(driver_.cuMemsetD8Async(pointer, 0, static_cast<size_t>(bytes), stream_),
                                      "cuMemsetD8Async");
  }

  Status launch(CuKernel kernel, unsigned x, unsigned y, int threads, int64_t shared_bytes) {
    if (x == 0) {
      return {};
    }
    void* parameters[] = {&params, &backward};
    return driver_.check(driver_.cuLaunchKernel(kernel, x, y, 1, static_cast<unsigned>(threads), 1, 1,
                                                static_cast<unsigned>(shared_bytes), stream_, parameters, nullptr),
                         "cuLaunchKernel");
  }

  const Driver& driver_;
  const Problem& problem_;
  const BackwardConfig& config_;
  const BackwardArguments& arguments_;
  CuStream stream_;
  Layout layout_;
  CuPointer memory_ = 0;
  int64_t rows_ = 0;
  int64_t query_blocks_ = 0;
  int64_t key_blocks_ = 0;
  int64_t rows_at_ = 0;
  int64_t low_flag_at_ = 0;
  int64_t high_at_ = 0;
  int64_t low_at_ = 0;
  std::vector<int64_t> sums_at_;  // of each captured tensor's gradient
};

}  // namespace

const BackwardConfig& Backward::config() const { return state_->config; }

Result<Backward> Backward::compile(const Problem& problem, const Device& device,
                                   const std::vector<bool>& wants_gradient,
                                   const Forward::KernelCompiler& compile_kernel) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  auto state = std::make_shared<State>(*driver, device);
  state->problem = problem;
  state->captures = std::ranges::find(wants_gradient, true) != wants_gradient.end();
  FLASHLIFT_ASSIGN_OR_RETURN(state->config, choose_backward_config(problem, device.architecture));
  const BackwardSources sources = backward_sources(problem, state->config, wants_gradient);
  FLASHLIFT_ASSIGN_OR_RETURN(const auto query_cubin, compile_kernel(sources.queries));
  FLASHLIFT_ASSIGN_OR_RETURN(state->query_library, LoadedLibrary::load(*driver, *query_cubin));
  FLASHLIFT_ASSIGN_OR_RETURN(const auto key_cubin, compile_kernel(sources.keys));
  FLASHLIFT_ASSIGN_OR_RETURN(state->key_library, LoadedLibrary::load(*driver, *key_cubin));
  const auto find = [&](const LoadedLibrary& library, const char* name, int64_t shared_bytes,
                        CuKernel& kernel) -> Status {
    FLASHLIFT_ASSIGN_OR_RETURN(kernel, library.kernel(name, device.handle, shared_bytes));
    return {};
  };
  const int64_t shared = state->config.queries.shared_bytes;
  const LoadedLibrary& queries = *state->query_library;
  FLASHLIFT_RETURN_IF_ERROR(find(queries, "flashlift_backward_rows", shared, state->rows));
  FLASHLIFT_RETURN_IF_ERROR(find(queries, "flashlift_backward_queries", shared, state->queries));
  FLASHLIFT_RETURN_IF_ERROR(find(queries, "flashlift_store_capture", 0, state->store_capture));
  if (converts_d_out(problem)) {
    FLASHLIFT_RETURN_IF_ERROR(find(queries, "flashlift_convert_d_out", 0, state->convert_d_out));
  }
  if (problem.sinks > 0) {
    FLASHLIFT_RETURN_IF_ERROR(find(queries, "flashlift_backward_sinks", 0, state->sinks));
  }
  FLASHLIFT_RETURN_IF_ERROR(
      find(*state->key_library, "flashlift_backward_keys", state->config.keys.shared_bytes, state->keys));
  FLASHLIFT_ASSIGN_OR_RETURN(state->bounds, BoundsPasses::load(problem, queries, device));
  return Backward(std::move(state));
}

Status Backward::run(const BackwardArguments& arguments, CuStream stream) const {
  const State& state = *state_;
  FLASHLIFT_ASSIGN_OR_RETURN(const CurrentContext context,
                             CurrentContext::of(state.driver, stream, state.device.handle));
  Call call(state.driver, state.problem, state.config, arguments, stream);
  FLASHLIFT_RETURN_IF_ERROR(call.prepare());
  const int64_t bounds_at = call.take_bounds(state.bounds.bytes(call.params));
  FLASHLIFT_ASSIGN_OR_RETURN(const StreamAllocation memory, StreamAllocation::of(state.driver, call.bytes(), stream));
  call.place(memory.pointer());
  FLASHLIFT_RETURN_IF_ERROR(
      state.bounds.launch(state.driver, call.params, memory.pointer() + static_cast<CuPointer>(bounds_at), stream));
  if (converts_d_out(state.problem)) {
    FLASHLIFT_RETURN_IF_ERROR(call.convert_d_out(state.convert_d_out));
  }
  FLASHLIFT_RETURN_IF_ERROR(call.work_on_queries(state.rows));
  FLASHLIFT_RETURN_IF_ERROR(call.clear_captures());
  if (arguments.d_q || state.captures) {
    FLASHLIFT_RETURN_IF_ERROR(call.work_on_queries(state.queries));
  }
  if (arguments.d_k || arguments.d_v) {
    FLASHLIFT_RETURN_IF_ERROR(call.work_on_keys(state.keys));
  }
  if (arguments.d_sinks) {
    FLASHLIFT_RETURN_IF_ERROR(call.sum_sinks(state.sinks));
  }
  return call.store_captures(state.store_capture);
}

}  // namespace flashlift::cuda
