// flashlift.h: compiling and running.
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "capi/dlpack.h"
#include "capi/error.h"
#include "capi/tune.h"
#include "flashlift/attention.h"
#include "flashlift/block_mask.h"
#include "problem/block_mask.h"
#include "problem/verify_tensor.h"
#include "score/operation.h"
#include "support/counted.h"
#include "support/error.h"
#include "support/lazy.h"
#include "support/per_thread.h"
#include "support/rounding.h"
#include "support/version.h"

struct FlashliftAttention {
  flashlift::Attention attention;
  DLDevice device;
  std::string problem;
  std::string considerations;
  std::string backward_considerations;
};

namespace flashlift::capi {
namespace {

Result<CompileOptions> to_options(const FlashliftCompileOptions& given) {
  CompileOptions options;
  FLASHLIFT_ASSIGN_OR_RETURN(options.device, to_device_kind(given.device));
  options.device_ordinal = given.device.device_id;
  options.implementation = given.implementation == nullptr ? "" : given.implementation;
  options.lengths_known = given.lengths_unknown == 0;
  FLASHLIFT_ASSIGN_OR_RETURN(options.tuning, to_policy(given.tuning_policy));
  return options;
}

std::string describe(const std::vector<Consideration>& considerations) {
  std::string text;
  for (const Consideration& one : considerations) {
    text += fmt::format("{}: {}: {}\n", one.implementation, one.accepted ? "accepted" : "rejected", one.reason);
  }
  return text;
}

Status compile(const char* problem_text, const FlashliftCompileOptions* given, FlashliftAttention** result) {
  if (problem_text == nullptr || result == nullptr) {
    return invalid_argument("flashlift_attention_compile: problem and attention must not be NULL");
  }
  *result = nullptr;
  FlashliftCompileOptions read;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftCompileOptions", read));
  FLASHLIFT_ASSIGN_OR_RETURN(const CompileOptions options, to_options(read));
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(problem_text));
  FLASHLIFT_ASSIGN_OR_RETURN(Attention attention, Attention::compile(problem, options));
  const DLDevice device{options.device == DeviceKind::kCuda ? kDLCUDA : kDLCPU, options.device_ordinal};
  auto object = std::make_unique<FlashliftAttention>(FlashliftAttention{attention, device, print(attention.problem()),
                                                                        describe(attention.considerations()),
                                                                        describe(attention.backward_considerations())});
  *result = object.release();
  return {};
}

Status describe_problem(const FlashliftAttention* attention, FlashliftProblemInfo* result) {
  if (attention == nullptr || result == nullptr) {
    return invalid_argument("flashlift_attention_info: attention and info must not be NULL");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const size_t known, known_size(*result, "FlashliftProblemInfo"));
  const Problem& p = attention->attention.problem();
  const FlashliftProblemInfo info = {.struct_size = result->struct_size,
                                     .batch = p.batch,
                                     .q_heads = p.q_heads,
                                     .kv_heads = p.kv_heads,
                                     .q_len = p.q_len,
                                     .kv_len = p.kv_len,
                                     .head_dim = p.head_dim,
                                     .value_dim = p.value_dim,
                                     .dtype = to_dlpack(p.dtype),
                                     .out_dtype = to_dlpack(p.out_dtype),
                                     .sinks = p.sinks,
                                     .want_lse = p.want_lse ? 1 : 0,
                                     .capture_count = static_cast<int32_t>(p.captures.size()),
                                     .page_size = p.page_size,
                                     .dropout = p.dropout,
                                     .want_row_max = p.want_row_max ? 1 : 0,
                                     .want_residual = p.want_residual ? 1 : 0,
                                     .keep_mask = p.keep_mask ? 1 : 0,
                                     .dropout_words = p.dropout_words ? 1 : 0};
  std::memcpy(result, &info, known);
  return {};
}

// The caller's executor as a C++ executor.
class LentExecutor : public Executor {
 public:
  explicit LentExecutor(const FlashliftExecutor& lent) : lent_(lent) {}
  int concurrency() const override { return lent_.concurrency; }
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    lent_.parallel_for(
        lent_.context, count,
        [](void* context, int64_t index) { (*static_cast<const std::function<void(int64_t)>*>(context))(index); },
        const_cast<std::function<void(int64_t)>*>(&body));
  }

 private:
  FlashliftExecutor lent_;
};

// Lends a vector the memory that it had in the thread's last call, so that calls do not allocate. A call inside a call
// (an executor may make one) gets no memory and allocates its own.
template <typename T>
class KeptRoom {
 public:
  explicit KeptRoom(std::vector<T>& vector) : vector_(vector) {
    vector_.swap(kept());
    vector_.clear();
  }
  ~KeptRoom() { vector_.swap(kept()); }
  KeptRoom(const KeptRoom&) = delete;
  KeptRoom& operator=(const KeptRoom&) = delete;

 private:
  static std::vector<T>& kept() {
    static constinit thread_local PerThread<std::vector<T>> room;
    return room.get();
  }

  std::vector<T>& vector_;
};

// Reads no more tensors than the problem has, since a wrong count may be more than the array's.
Status to_captures(const DLTensor* const* given, size_t count, DLDevice device, const Problem& problem,
                   std::vector<TensorView>& captures) {
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_capture_count(problem, count));
  if (count > 0 && given == nullptr) {
    return invalid_argument("captures is NULL; expected {}", counted(count, "tensor"));
  }
  for (size_t i = 0; i < count; ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(const TensorView view, to_view(given[i], fmt::format("captures[{}]", i), device));
    captures.push_back(view);
  }
  return {};
}

Status to_optional_view(const DLTensor* tensor, std::string_view name, DLDevice device,
                        std::optional<TensorView>& view) {
  if (tensor != nullptr) {
    FLASHLIFT_ASSIGN_OR_RETURN(view, to_view(tensor, name, device));
  }
  return {};
}

Status to_arguments(const FlashliftArguments& given, const FlashliftAttention& attention,
                    AttentionArguments& arguments) {
  const DLDevice device = attention.device;
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.q, to_view(given.q, "q", device));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.k, to_view(given.k, "k", device));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.v, to_view(given.v, "v", device));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.out, to_view(given.out, "out", device));
  FLASHLIFT_RETURN_IF_ERROR(
      to_captures(given.captures, given.capture_count, device, attention.attention.problem(), arguments.captures));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.sinks, "sinks", device, arguments.sinks));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.lse, "lse", device, arguments.lse));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.row_max, "row_max", device, arguments.row_max));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.residual, "residual", device, arguments.residual));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.page_table, "page_table", device, arguments.page_table));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.keep_mask, "keep_mask", device, arguments.keep_mask));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.dropout_words, "dropout_words", device, arguments.dropout_words));
  arguments.dropout_seed = given.dropout_seed;
  return {};
}

// Calls run(RunOptions) with the caller's options.
template <typename Run>
Status run_with(const FlashliftRunOptions* given, Run&& run) {
  FlashliftRunOptions read;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftRunOptions", read));
  RunOptions options{.stream = read.stream, .allocator = {.allocate = read.allocate, .context = read.allocate_context}};
  if (read.cancelled != nullptr) {
    static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t) && std::atomic<int32_t>::is_always_lock_free);
    options.cancelled = reinterpret_cast<const std::atomic<int32_t>*>(read.cancelled);
  }
  if (read.executor == nullptr) {
    return run(options);
  }
  FlashliftExecutor lent;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(read.executor, "FlashliftExecutor", lent));
  if (lent.parallel_for == nullptr) {
    return invalid_argument("FlashliftExecutor::parallel_for is NULL; expected a function");
  }
  if (lent.concurrency < 1) {
    return invalid_argument("FlashliftExecutor::concurrency is {}; expected at least 1", lent.concurrency);
  }
  LentExecutor executor(lent);
  options.executor = &executor;
  return run(options);
}

Status read_arguments(const FlashliftArguments* given, const FlashliftAttention& attention,
                      AttentionArguments& arguments) {
  FlashliftArguments read;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftArguments", read));
  return to_arguments(read, attention, arguments);
}

Status run(const FlashliftAttention* attention, const FlashliftArguments* given, const FlashliftRunOptions* options) {
  if (attention == nullptr || given == nullptr) {
    return invalid_argument("flashlift_attention_run: attention and arguments must not be NULL");
  }
  AttentionArguments arguments;
  const KeptRoom room(arguments.captures);
  FLASHLIFT_RETURN_IF_ERROR(read_arguments(given, *attention, arguments));
  return run_with(options, [&](const RunOptions& run) { return attention->attention.run(arguments, run); });
}

Status to_backward_arguments(const FlashliftBackwardArguments& given, const FlashliftAttention& attention,
                             BackwardArguments& arguments) {
  const DLDevice device = attention.device;
  FLASHLIFT_RETURN_IF_ERROR(read_arguments(given.forward, attention, arguments.forward));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.d_out, to_view(given.d_out, "d_out", device));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.d_lse, "d_lse", device, arguments.d_lse));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.d_q, "d_q", device, arguments.d_q));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.d_k, "d_k", device, arguments.d_k));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.d_v, "d_v", device, arguments.d_v));
  FLASHLIFT_RETURN_IF_ERROR(to_optional_view(given.d_sinks, "d_sinks", device, arguments.d_sinks));
  if (given.d_captures != nullptr) {
    arguments.d_captures.resize(arguments.forward.captures.size());
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      FLASHLIFT_RETURN_IF_ERROR(
          to_optional_view(given.d_captures[i], fmt::format("d_captures[{}]", i), device, arguments.d_captures[i]));
    }
  }
  return {};
}

Status run_backward(const FlashliftAttention* attention, const FlashliftBackwardArguments* given,
                    const FlashliftRunOptions* options) {
  if (attention == nullptr || given == nullptr) {
    return invalid_argument("flashlift_attention_run_backward: attention and arguments must not be NULL");
  }
  FlashliftBackwardArguments read;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftBackwardArguments", read));
  if (read.forward == nullptr) {
    return invalid_argument("FlashliftBackwardArguments::forward is NULL; expected the forward call's arguments");
  }
  BackwardArguments arguments;
  const KeptRoom room(arguments.forward.captures);
  const KeptRoom gradients_room(arguments.d_captures);
  FLASHLIFT_RETURN_IF_ERROR(to_backward_arguments(read, *attention, arguments));
  return run_with(options, [&](const RunOptions& run) { return attention->attention.run_backward(arguments, run); });
}

// The captured tensors whose gradients are requested.
Result<std::vector<bool>> read_wanted(const char* function, const FlashliftAttention* attention, const int32_t* wanted,
                                      size_t wanted_count) {
  if (attention == nullptr || (wanted == nullptr && wanted_count > 0)) {
    return invalid_argument("{}: attention and wanted must not be NULL", function);
  }
  const size_t captures = attention->attention.problem().captures.size();
  if (wanted_count != 0 && wanted_count != captures) {  // checked before `wanted` is read
    return invalid_argument("{}: wanted has {}, expected {}, one for each captured tensor, or none", function,
                            counted(wanted_count, "entry", "entries"), captures);
  }
  std::vector<bool> flags(wanted_count);
  std::transform(wanted, wanted + wanted_count, flags.begin(), [](int32_t flag) { return flag != 0; });
  return flags;
}

Status prepare_backward(const FlashliftAttention* attention, const int32_t* wanted, size_t wanted_count) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<bool> flags,
                             read_wanted("flashlift_attention_prepare_backward", attention, wanted, wanted_count));
  return attention->attention.prepare_backward(flags);
}

Status reads_residual(const FlashliftAttention* attention, const int32_t* wanted, size_t wanted_count, int32_t* reads) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<bool> flags,
                             read_wanted("flashlift_attention_reads_residual", attention, wanted, wanted_count));
  if (reads == nullptr) {
    return invalid_argument("flashlift_attention_reads_residual: reads must not be NULL");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const bool does, attention->attention.reads_residual(flags));
  *reads = does ? 1 : 0;
  return {};
}

bool is_dense(const TensorView& view) {
  if (view.element_count() == 0) {  // numpy sets the strides of such an array to 0
    return true;
  }
  const TensorView dense = dense_view(view.data, view.dtype, view.shape());
  for (int i = 0; i < view.rank; ++i) {
    if (view.sizes[i] > 1 && view.strides[i] != dense.strides[i]) {
      return false;
    }
  }
  return true;
}

Status write_block_kinds(const char* problem_text, const DLTensor* const* given, size_t capture_count, int64_t q_block,
                         int64_t kv_block, const DLTensor* kinds) {
  if (problem_text == nullptr || kinds == nullptr) {
    return invalid_argument("flashlift_block_kinds: problem and kinds must not be NULL");
  }
  const DLDevice cpu{kDLCPU, 0};
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(problem_text));
  std::vector<TensorView> captures;
  FLASHLIFT_RETURN_IF_ERROR(to_captures(given, capture_count, cpu, problem, captures));
  FLASHLIFT_ASSIGN_OR_RETURN(const TensorView view, to_view(kinds, "kinds", cpu));
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_blocks(q_block, kv_block));
  const bool by_batch = view.rank == 4 && view.sizes[0] != 1;
  const bool by_head = view.rank == 4 && view.sizes[1] != 1;
  const std::vector<int64_t> shape = {by_batch ? problem.batch : 1, by_head ? problem.q_heads : 1,
                                      divide_up(problem.q_len, q_block), divide_up(problem.kv_len, kv_block)};
  FLASHLIFT_RETURN_IF_ERROR(
      problem::verify_output({.name = "kinds", .view = view, .dtype = DType::kU8, .shape = shape}));
  if (!is_dense(view)) {
    return invalid_argument("kinds: expected {}, dense, got strides [{}]",
                            describe(dense_view(nullptr, DType::kU8, shape)),
                            fmt::join(view.strides.begin(), view.strides.begin() + view.rank, ","));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const BlockKinds found,
                             block_kinds(problem, captures, q_block, kv_block, by_batch, by_head));
  if (!found.kinds.empty()) {
    std::memcpy(view.data, found.kinds.data(), found.kinds.size());
  }
  return {};
}

}  // namespace
}  // namespace flashlift::capi

extern "C" {

int32_t flashlift_api_version(void) { return FLASHLIFT_API_VERSION; }
const char* flashlift_version(void) { return flashlift::version(); }

const char* flashlift_operations(void) {
  static constinit flashlift::Lazy<const std::string> text;
  return text.get(flashlift::score::operations_as_json).c_str();
}

FlashliftError* flashlift_attention_compile(const char* problem, const FlashliftCompileOptions* options,
                                            FlashliftAttention** attention) {
  return flashlift::capi::guarded([&] { return flashlift::capi::compile(problem, options, attention); });
}

void flashlift_attention_destroy(FlashliftAttention* attention) { delete attention; }

const char* flashlift_attention_problem(const FlashliftAttention* attention) {
  return attention == nullptr ? "" : attention->problem.c_str();
}

FlashliftError* flashlift_attention_info(const FlashliftAttention* attention, FlashliftProblemInfo* info) {
  return flashlift::capi::guarded([&] { return flashlift::capi::describe_problem(attention, info); });
}

const char* flashlift_attention_capture_name(const FlashliftAttention* attention, int32_t index) {
  if (attention == nullptr) {
    return nullptr;
  }
  const auto& captures = attention->attention.problem().captures;
  return index < 0 || static_cast<size_t>(index) >= captures.size() ? nullptr : captures[index].name.c_str();
}

const char* flashlift_attention_implementation(const FlashliftAttention* attention) {
  return attention == nullptr ? "" : attention->attention.implementation().c_str();
}

const char* flashlift_attention_considerations(const FlashliftAttention* attention) {
  return attention == nullptr ? "" : attention->considerations.c_str();
}

const char* flashlift_attention_backward_considerations(const FlashliftAttention* attention) {
  return attention == nullptr ? "" : attention->backward_considerations.c_str();
}

int64_t flashlift_attention_workspace_bytes(const FlashliftAttention* attention, int32_t concurrency) {
  return attention == nullptr ? -1 : attention->attention.workspace_bytes(concurrency);
}

int64_t flashlift_attention_backward_workspace_bytes(const FlashliftAttention* attention, int32_t concurrency) {
  return attention == nullptr ? -1 : attention->attention.backward_workspace_bytes(concurrency);
}

FlashliftError* flashlift_block_kinds(const char* problem, const DLTensor* const* captures, size_t capture_count,
                                      int64_t q_block, int64_t kv_block, const DLTensor* kinds) {
  return flashlift::capi::guarded(
      [&] { return flashlift::capi::write_block_kinds(problem, captures, capture_count, q_block, kv_block, kinds); });
}

FlashliftError* flashlift_attention_run(const FlashliftAttention* attention, const FlashliftArguments* arguments,
                                        const FlashliftRunOptions* options) {
  return flashlift::capi::guarded([&] { return flashlift::capi::run(attention, arguments, options); });
}

FlashliftError* flashlift_attention_prepare_backward(const FlashliftAttention* attention, const int32_t* wanted,
                                                     size_t wanted_count) {
  return flashlift::capi::guarded([&] { return flashlift::capi::prepare_backward(attention, wanted, wanted_count); });
}

FlashliftError* flashlift_attention_reads_residual(const FlashliftAttention* attention, const int32_t* wanted,
                                                   size_t wanted_count, int32_t* reads) {
  return flashlift::capi::guarded(
      [&] { return flashlift::capi::reads_residual(attention, wanted, wanted_count, reads); });
}

FlashliftError* flashlift_attention_run_backward(const FlashliftAttention* attention,
                                                 const FlashliftBackwardArguments* arguments,
                                                 const FlashliftRunOptions* options) {
  return flashlift::capi::guarded([&] { return flashlift::capi::run_backward(attention, arguments, options); });
}

}  // extern "C"
