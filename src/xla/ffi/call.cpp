#include "xla/ffi/call.h"

#include <charconv>
#include <future>

#include "support/beside.h"
#include "support/counted.h"
#include "support/error.h"

namespace flashlift::xla {
namespace {

Result<Attention> compile(const Signature& signature, CompileOptions options) {
  options.implementation = signature.implementation();
  options.lengths_known = signature.lengths_known();
  return Attention::compile(signature.problem(), options);
}

Status check_count(std::string_view what, size_t expected, size_t actual, std::string_view which) {
  return expected == actual ? Status()
                            : invalid_argument("expected {} ({}), got {}", counted(expected, what), which, actual);
}

std::string names_of_operands(const Problem& problem) {
  return fmt::format("q, k, v, {}{}{}", counted(problem.captures.size(), "captured tensor"),
                     problem.sinks > 0 ? ", sinks" : "",
                     problem.keep_mask     ? ", the keep mask"
                     : problem.dropout > 0 ? ", dropout's seed"
                                           : "");
}

bool has_gradient(const Signature& signature, size_t operand) {
  const std::vector<Capture>& captures = signature.problem().captures;
  const bool drops = signature.problem().drops_keys() && operand + 1 == signature.input_count();  // seed or mask
  return !drops &&
         (operand < 3 || operand - 3 >= captures.size() || is_float(captures[signature.capture_of(operand)].dtype));
}

// Reads "0 1 2 4": ascending positions of the forward call's operands.
Result<std::vector<size_t>> read_gradients(const Attributes& attributes, const Signature& signature) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string_view text, required(attributes, "gradients"));
  std::vector<size_t> positions;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    size_t position = 0;
    const auto [next, error] = std::from_chars(at, end, position);
    const bool ascends = positions.empty() || position > positions.back();
    if (error != std::errc() || !ascends || position >= signature.input_count()) {
      return invalid_argument(
          "gradients = \"{}\": expected positions of the forward call's {} operands, ascending, with a space between",
          text, signature.input_count());
    }
    if (!has_gradient(signature, position)) {
      return invalid_argument("gradients = \"{}\": operand {} holds no floats and has no gradient", text, position);
    }
    positions.push_back(position);
    at = next != end && *next == ' ' ? next + 1 : next;
  }
  return positions;
}

// Compiles the GPU kernels of the backward call that follows if the problem says what d_out is. XLA creates that call
// only after the forward call. It finds these kernels in the process's cache, all but those for gradients of captured
// tensors, and reports their errors. An attention of their own loads them, so that they are unloaded again: the
// backward call loads its own. (The result's destructor waits.)
std::future<void> compile_backward_beside(const Signature& signature, CompileOptions options) {
  if (options.device != DeviceKind::kCuda || !signature.problem().d_out_like_inputs) {
    return {};
  }
  options.forward_at_once = false;
  return begin_beside([signature, options] {
    if (const Result<Attention> attention = compile(signature, options); attention.ok()) {
      static_cast<void>(attention->prepare_backward());
    }
  });
}

}  // namespace

Result<AttentionCall> AttentionCall::create(const Attributes& attributes, const CompileOptions& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(Signature signature, Signature::read(attributes, {}));
  // At the end of this function, its destructor waits for the other thread.
  [[maybe_unused]] const std::future<void> backward = compile_backward_beside(signature, options);
  FLASHLIFT_ASSIGN_OR_RETURN(Attention attention, compile(signature, options));
  return AttentionCall(std::move(signature), std::move(attention));
}

Status AttentionCall::run(std::span<const Buffer> operands, std::span<const Buffer> results,
                          const RunOptions& options) const {
  const Problem& problem = signature_.problem();
  FLASHLIFT_RETURN_IF_ERROR(
      check_count("operand", signature_.input_count(), operands.size(), names_of_operands(problem)));
  FLASHLIFT_RETURN_IF_ERROR(
      check_count("result", signature_.output_count(), results.size(), problem.want_lse ? "out, lse" : "out"));
  FLASHLIFT_ASSIGN_OR_RETURN(const AttentionArguments arguments, signature_.bind(operands, results));
  return attention_.run(arguments, options);
}

Result<BackwardCall> BackwardCall::create(const Attributes& attributes, CompileOptions options) {
  FLASHLIFT_ASSIGN_OR_RETURN(Signature signature, Signature::read(attributes, kAttributes));
  FLASHLIFT_ASSIGN_OR_RETURN(std::vector<size_t> gradients, read_gradients(attributes, signature));
  FLASHLIFT_RETURN_IF_ERROR(verify_backward(signature.problem()));
  options.forward_at_once = false;
  FLASHLIFT_ASSIGN_OR_RETURN(const Attention attention, compile(signature, options));
  const size_t captures = signature.problem().captures.size();
  std::vector<bool> capture_gradients(captures);
  for (const size_t operand : gradients) {
    if (operand >= 3 && operand - 3 < captures) {
      capture_gradients[signature.capture_of(operand)] = true;
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(attention.prepare_backward(capture_gradients));
  return BackwardCall(std::move(signature), attention, std::move(gradients));
}

Status BackwardCall::run(std::span<const Buffer> operands, std::span<const Buffer> results,
                         const RunOptions& options) const {
  const size_t inputs = signature_.input_count();
  const size_t outputs = signature_.output_count();
  const bool has_lse = outputs > 1;
  FLASHLIFT_RETURN_IF_ERROR(
      check_count("operand", inputs + 2 * outputs, operands.size(),
                  names_of_operands(signature_.problem()) + (has_lse ? ", out, lse, d_out, d_lse" : ", out, d_out")));
  FLASHLIFT_RETURN_IF_ERROR(
      check_count("result", gradients_.size(), results.size(), "one for each entry of gradients"));

  BackwardArguments arguments;
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.forward,
                             signature_.bind(operands.first(inputs), operands.subspan(inputs, outputs)));
  const std::span<const Buffer> cotangents = operands.last(outputs);
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.d_out, signature_.bind_output_gradient(0, cotangents[0]));
  if (has_lse) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.d_lse, signature_.bind_output_gradient(1, cotangents[1]));
  }
  FLASHLIFT_RETURN_IF_ERROR(bind_gradients(results, arguments));
  return attention_.run_backward(arguments, options);
}

Status BackwardCall::bind_gradients(std::span<const Buffer> results, BackwardArguments& arguments) const {
  const size_t captures = signature_.problem().captures.size();
  arguments.d_captures.resize(captures);
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t operand = gradients_[i];
    FLASHLIFT_ASSIGN_OR_RETURN(const TensorView view, signature_.bind_input_gradient(operand, results[i]));
    if (operand < 3) {
      (operand == 0 ? arguments.d_q : operand == 1 ? arguments.d_k : arguments.d_v) = view;
    } else if (operand - 3 < captures) {
      arguments.d_captures[signature_.capture_of(operand)] = view;
    } else {
      arguments.d_sinks = view;
    }
  }
  return {};
}

}  // namespace flashlift::xla
