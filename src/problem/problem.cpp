#include "flashlift/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "problem/sizes.h"
#include "problem/verify_tensor.h"
#include "score/verify.h"
#include "support/counted.h"
#include "support/error.h"

namespace flashlift {
namespace {

// Coordinates are i32 in programs, which often multiply two of them.
constexpr int64_t kMaxLength = int64_t{1} << 30;

Status verify_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return invalid_argument("{} must be {} to {}, got {}", name, low, high, value);
  }
  return {};
}

Status verify_program(const char* name, const Program& program, ProgramKind kind) {
  if (program.kind != kind) {
    return invalid_argument("the {} of a problem holds a program of the other kind", name);
  }
  const Status status = score::verify(program);
  if (!status.ok()) {
    return Error{status.error().kind, fmt::format("{}: {}", name, status.error().message)};
  }
  return {};
}

bool is_data_dtype(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

Status verify_dtype(const char* name, DType dtype) {
  if (!is_data_dtype(dtype)) {
    return unsupported("{} has dtype {}, expected f32, bf16 or f16", name, to_string(dtype));
  }
  return {};
}

}  // namespace

const char* to_string(EmptyRows rows) {
  switch (rows) {
    case EmptyRows::kZero:
      return "zero";
    case EmptyRows::kUniform:
      return "uniform";
    case EmptyRows::kNan:
      return "nan";
  }
  return "?";
}

Result<std::vector<Capture>> collect_captures(const std::optional<Program>& score_mod,
                                              const std::optional<Program>& mask_mod) {
  std::vector<Capture> captures;
  for (const auto* program : {&score_mod, &mask_mod}) {
    if (!program->has_value()) {
      continue;
    }
    for (const Capture& capture : (*program)->captures) {
      const auto found = std::find_if(captures.begin(), captures.end(),
                                      [&](const Capture& other) { return other.name == capture.name; });
      if (found == captures.end()) {
        captures.push_back(capture);
      } else if (!(*found == capture)) {
        return invalid_argument("score_mod and mask_mod declare the captured tensor `{}` differently; rename one",
                                capture.name);
      }
    }
  }
  return captures;
}

Status verify(const Problem& problem) {
  FLASHLIFT_RETURN_IF_ERROR(verify_range("batch", problem.batch, 0, kMaxLength));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("q_heads", problem.q_heads, 1, 1 << 20));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("kv_heads", problem.kv_heads, 1, 1 << 20));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("q_len", problem.q_len, 0, kMaxLength));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("kv_len", problem.kv_len, 0, kMaxLength));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("head_dim", problem.head_dim, 1, problem::kMostDepth));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("value_dim", problem.value_dim, 1, problem::kMostDepth));
  FLASHLIFT_RETURN_IF_ERROR(verify_range("sinks", problem.sinks, 0, 1 << 20));
  if (problem.q_heads % problem.kv_heads != 0) {
    return invalid_argument("q_heads must be a multiple of kv_heads, got {} and {}", problem.q_heads, problem.kv_heads);
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_dtype("the problem", problem.dtype));
  FLASHLIFT_RETURN_IF_ERROR(verify_dtype("the output", problem.out_dtype));
  if (problem.empty_rows > EmptyRows::kNan) {
    return invalid_argument("empty_rows is {}, expected kZero, kUniform or kNan", static_cast<int>(problem.empty_rows));
  }
  if (problem.want_residual && problem.out_dtype == DType::kF32) {
    return invalid_argument("residual is the output's rounding error to 16 bits, but the output is f32; leave it out");
  }
  if (!(problem.dropout >= 0 && problem.dropout < 1)) {
    return invalid_argument("dropout must be a probability from 0 to below 1, got {}", problem.dropout);
  }
  if (problem.dropout_words && problem.keep_mask) {
    return invalid_argument(
        "dropout_words give a seed, but the problem uses a keep_mask instead of a seed; leave one of them out");
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_range("page_size", problem.page_size, 0, kMaxLength));
  if (problem.page_size > 0 && problem.kv_len % problem.page_size != 0) {
    return invalid_argument(
        "kv_len counts whole pages: expected a multiple of page_size {}, got {}; key_lengths says how many keys count",
        problem.page_size, problem.kv_len);
  }
  if (!std::isfinite(problem.scale)) {
    return invalid_argument("scale must be finite, got {}", problem.scale);
  }
  if (problem.score_mod) {
    FLASHLIFT_RETURN_IF_ERROR(verify_program("score_mod", *problem.score_mod, ProgramKind::kScoreMod));
  }
  if (problem.mask_mod) {
    FLASHLIFT_RETURN_IF_ERROR(verify_program("mask_mod", *problem.mask_mod, ProgramKind::kMaskMod));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const auto captures, collect_captures(problem.score_mod, problem.mask_mod));
  if (captures != problem.captures) {
    return invalid_argument(
        "Problem::captures has {}, but the programs read {}, or in another order; "
        "set it to collect_captures(score_mod, mask_mod)",
        counted(problem.captures.size(), "tensor"), captures.size());
  }
  return {};
}

namespace {

// The lengths that a call determines.
struct CallLengths {
  int64_t batch;
  int64_t q_len;
  int64_t kv_len;
};

// The required size of a dimension that is declared as `size` and has `got` elements. `same` is the value of kSameSize,
// or negative if no dimension has set it yet.
int64_t settled_size(const Problem& problem, const CallLengths& lengths, int64_t size, int64_t got, int64_t& same) {
  switch (size) {
    case kBatchSize:
      return lengths.batch;
    case kHeadsSize:
      return problem.q_heads;
    case kQLenSize:
      return lengths.q_len;
    case kKvLenSize:
      return lengths.kv_len;
    case kSameSize:
      same = same < 0 ? got : same;
      return same;
    default:
      break;
  }
  const bool may_be_one = size < kSameSize;
  return !may_be_one ? size : got == 1 ? 1 : settled_size(problem, lengths, size - or_one(0), got, same);
}

Status verify_captures(const Problem& problem, std::span<const TensorView> captures, const CallLengths& lengths) {
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_capture_count(problem, captures.size()));
  int64_t same = -1;
  for (size_t i = 0; i < problem.captures.size(); ++i) {
    const Capture& capture = problem.captures[i];
    std::array<int64_t, kMaxRank> shape{};
    for (size_t d = 0; d < capture.shape.size(); ++d) {
      shape[d] = settled_size(problem, lengths, capture.shape[d], captures[i].sizes[d], same);
    }
    FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({.name = capture.name,
                                                      .view = captures[i],
                                                      .dtype = capture.dtype,
                                                      .shape = {shape.data(), capture.shape.size()},
                                                      .role = "captured tensor",
                                                      .declared = capture.shape}));
  }
  return {};
}

}  // namespace

Status problem::verify_capture_count(const Problem& problem, size_t count) {
  if (count == problem.captures.size()) {
    return {};
  }
  std::string names;
  for (const Capture& capture : problem.captures) {
    names += (names.empty() ? " (" : ", ") + capture.name;
  }
  names += names.empty() ? "" : ")";
  return invalid_argument("expected {}{}, got {}", counted(problem.captures.size(), "captured tensor"), names, count);
}

Status verify_captures(const Problem& problem, std::span<const TensorView> captures) {
  return verify_captures(problem, captures, {problem.batch, problem.q_len, problem.kv_len});
}

int64_t kv_length(const Problem& problem, const AttentionArguments& arguments) {
  return problem.page_size > 0 ? arguments.page_table->sizes[1] * problem.page_size : arguments.k.sizes[2];
}

namespace {

Status verify_keys(const Problem& p, const AttentionArguments& arguments, int64_t batch) {
  const int64_t rows = arguments.k.rank > 2 ? arguments.k.sizes[2] : -1;
  if (p.page_size == 0) {
    const std::array<int64_t, 4> k_shape = {batch, p.kv_heads, -1, p.head_dim};
    const std::array<int64_t, 4> v_shape = {batch, p.kv_heads, rows, p.value_dim};
    FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({.name = "k",
                                                      .view = arguments.k,
                                                      .dtype = p.dtype,
                                                      .shape = k_shape,
                                                      .dimensions = "[batch,kv_heads,kv_len,head_dim]"}));
    FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({.name = "v",
                                                      .view = arguments.v,
                                                      .dtype = p.dtype,
                                                      .shape = v_shape,
                                                      .dimensions = "[batch,kv_heads,kv_len,value_dim]"}));
    if (arguments.page_table) {
      return invalid_argument(
          "the call gives a page table, but the problem has no page_size; compile it with page_size=<N>");
    }
    return {};
  }
  const int64_t pages = arguments.k.rank > 0 ? arguments.k.sizes[0] : -1;
  const std::array<int64_t, 4> k_shape = {-1, p.kv_heads, p.page_size, p.head_dim};
  const std::array<int64_t, 4> v_shape = {pages, p.kv_heads, p.page_size, p.value_dim};
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({"k (pages)", arguments.k, p.dtype, k_shape}));
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({"v (pages)", arguments.v, p.dtype, v_shape}));
  if (!arguments.page_table) {
    return invalid_argument("the problem has pages of {} keys, but the call lacks a page table, i32 [batch, pages]",
                            p.page_size);
  }
  const std::array<int64_t, 2> table_shape = {batch, -1};
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({"page_table", *arguments.page_table, DType::kI32, table_shape}));
  const int64_t width = arguments.page_table->sizes[1];
  if (width > kMaxLength / p.page_size) {
    return invalid_argument("sequences have at most {} tokens, got {} pages of {} keys", kMaxLength, width,
                            p.page_size);
  }
  if (pages == 0 && arguments.page_table->element_count() > 0) {
    return invalid_argument(
        "the page table is {}, but k and v have no page; expected one page or more, or a page table of width 0",
        describe(*arguments.page_table));
  }
  return {};
}

Status verify_dropout_words(const TensorView& words) {
  const std::array<int64_t, 1> shape = {words.rank == 1 && words.sizes[0] == 4 ? 4 : 2};
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({"dropout_words", words, DType::kU32, shape}));
  return words.strides[0] == 1 ? Status()
                               : invalid_argument("dropout_words has stride {}, expected 1", words.strides[0]);
}

// The output must be present exactly if the problem requests it: f32 [batch, q_heads, q_len].
Status verify_row_output(const char* name, const std::optional<TensorView>& view, bool wanted,
                         std::span<const int64_t> shape) {
  if (view.has_value() != wanted) {
    return invalid_argument("the problem has {}{}, but the call {} it", wanted ? "" : "no ", name,
                            view ? "gives" : "lacks");
  }
  return view ? problem::verify_output({name, *view, DType::kF32, shape}) : Status();
}

// The residual has the output's strides: kernels have one set of strides for both.
Status verify_residual(const Problem& p, const AttentionArguments& arguments, std::span<const int64_t> shape) {
  if (arguments.residual.has_value() != p.want_residual) {
    return invalid_argument("the problem {} for residual, but the call {} it",
                            p.want_residual ? "asks" : "does not ask", arguments.residual ? "gives" : "lacks");
  }
  if (!arguments.residual) {
    return {};
  }
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_output({"residual", *arguments.residual, DType::kI8, shape}));
  for (int d = 0; d < 4; ++d) {
    if (arguments.residual->sizes[d] > 1 && arguments.residual->strides[d] != arguments.out.strides[d]) {
      return invalid_argument("residual has stride {} in dimension {}; expected out's, which is {}",
                              arguments.residual->strides[d], d, arguments.out.strides[d]);
    }
  }
  return {};
}

Status verify_sinks(const Problem& p, const std::optional<TensorView>& sinks) {
  if (sinks.has_value() != (p.sinks > 0)) {
    return invalid_argument("the problem has {} sinks per head, but the call {} a sinks tensor", p.sinks,
                            sinks ? "gives" : "lacks");
  }
  if (!sinks) {
    return {};
  }
  const std::array<int64_t, 2> shape = {p.q_heads, p.sinks};
  const std::span<const int64_t> wanted = sinks->rank == 1 ? std::span(shape).last(1) : std::span(shape);
  return problem::verify_tensor({"sinks", *sinks, DType::kF32, wanted});
}

// `shape`: [batch, q_heads, q_len, kv_len].
Status verify_dropout(const Problem& p, const AttentionArguments& arguments, std::array<int64_t, 4> shape) {
  if (arguments.keep_mask.has_value() != p.keep_mask) {
    return invalid_argument("the problem has {} keep_mask, but the call {} one", p.keep_mask ? "a" : "no",
                            arguments.keep_mask ? "gives" : "lacks");
  }
  if (arguments.keep_mask) {
    for (size_t d = 0; d < shape.size(); ++d) {
      shape[d] = arguments.keep_mask->sizes[d] == 1 ? 1 : shape[d];
    }
    FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({"keep_mask", *arguments.keep_mask, DType::kBool, shape}));
  }
  if (arguments.dropout_words.has_value() != p.dropout_words) {
    return invalid_argument("the problem has {}dropout_words, but the call {} them", p.dropout_words ? "" : "no ",
                            arguments.dropout_words ? "gives" : "lacks");
  }
  return arguments.dropout_words ? verify_dropout_words(*arguments.dropout_words) : Status();
}

}  // namespace

Status verify(const Problem& problem, const AttentionArguments& arguments) {
  const Problem& p = problem;
  const int64_t batch = arguments.q.rank > 0 ? arguments.q.sizes[0] : -1;
  const int64_t q_len = arguments.q.rank > 2 ? arguments.q.sizes[2] : -1;
  const std::array<int64_t, 4> q_shape = {-1, p.q_heads, -1, p.head_dim};
  const std::array<int64_t, 4> out_shape = {batch, p.q_heads, q_len, p.value_dim};
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_tensor({.name = "q",
                                                    .view = arguments.q,
                                                    .dtype = p.dtype,
                                                    .shape = q_shape,
                                                    .dimensions = "[batch,q_heads,q_len,head_dim]"}));
  FLASHLIFT_RETURN_IF_ERROR(verify_keys(p, arguments, batch));
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_output({.name = "out",
                                                    .view = arguments.out,
                                                    .dtype = p.out_dtype,
                                                    .shape = out_shape,
                                                    .dimensions = "[batch,q_heads,q_len,value_dim]"}));
  const int64_t kv_len = kv_length(problem, arguments);
  if (q_len > kMaxLength || kv_len > kMaxLength) {
    return invalid_argument("sequences have at most {} tokens, got {} queries and {} keys", kMaxLength, q_len, kv_len);
  }
  if (batch > kMaxLength) {
    return invalid_argument("the batch is at most {}, got {}", kMaxLength, batch);
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_captures(problem, arguments.captures, {batch, q_len, kv_len}));
  FLASHLIFT_RETURN_IF_ERROR(verify_sinks(p, arguments.sinks));
  FLASHLIFT_RETURN_IF_ERROR(verify_dropout(p, arguments, {batch, p.q_heads, q_len, kv_len}));
  const std::array<int64_t, 3> row_shape = {batch, p.q_heads, q_len};
  FLASHLIFT_RETURN_IF_ERROR(verify_row_output("lse", arguments.lse, p.want_lse, row_shape));
  FLASHLIFT_RETURN_IF_ERROR(verify_row_output("row_max", arguments.row_max, p.want_row_max, row_shape));
  FLASHLIFT_RETURN_IF_ERROR(verify_residual(p, arguments, out_shape));
  problem::CallTensors tensors;
  problem::add_inputs(arguments, problem, tensors);
  tensors.add_output("out", arguments.out);
  if (arguments.residual) {
    tensors.add_output("residual", *arguments.residual);
  }
  if (arguments.lse) {
    tensors.add_output("lse", *arguments.lse);
  }
  if (arguments.row_max) {
    tensors.add_output("row_max", *arguments.row_max);
  }
  return tensors.verify_apart();
}

}  // namespace flashlift
