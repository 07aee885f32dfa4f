#include "stablehlo/rewrite/cudnn.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "support/counted.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPrefix = "__cudnn$fmha";

// The fields of backend_config that determine what the call computes.
struct Config {
  double scale = 0;
  std::string mask = "NO_MASK";
  double dropout = 0;
  int64_t window = 0;  // number of keys that a query sees, including itself; 0 for all
  int64_t segments = 1;
  bool is_paged = false;
  bool is_causal = false;    // older versions have this field instead of a causal mask_type
  bool heads_first = false;  // q, k and v are [batch, heads, length, depth] instead of [batch, length, heads, depth]
};

// Reads fields of a protocol buffer's message in JSON: numbers may be strings, and null is a missing field. A field of
// another type is an error, not a missing field.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  double number(const char* name, double otherwise) {
    const Json* field = find(name);
    if (field != nullptr && field->is_number()) {
      return field->get<double>();
    }
    const auto value = field == nullptr ? std::optional(otherwise) : read<double>(*field);
    return take(name, value, "a number");
  }
  int64_t whole_number(const char* name, int64_t otherwise) {
    const Json* field = find(name);
    return take(name, field == nullptr ? std::optional(otherwise) : integer(*field), "a whole number");
  }
  bool flag(const char* name) {
    const Json* field = find(name);
    return take(name,
                field == nullptr      ? std::optional(false)
                : field->is_boolean() ? std::optional(field->get<bool>())
                                      : std::nullopt,
                "true or false");
  }
  std::string text(const char* name, const char* otherwise) {
    const Json* field = find(name);
    return take(name,
                field == nullptr     ? std::optional<std::string>(otherwise)
                : field->is_string() ? std::optional(field->get<std::string>())
                                     : std::nullopt,
                "a text");
  }
  std::vector<int64_t> whole_numbers(const char* name) {
    const Json* field = find(name);
    std::optional<std::vector<int64_t>> list(std::in_place);
    if (field != nullptr && !field->is_array()) {
      list.reset();
    } else if (field != nullptr) {
      for (const Json& each : *field) {
        list->push_back(integer(each).value_or(-1));
      }
    }
    return take(name, list, "a list of whole numbers");
  }

  Status status() const { return status_; }

 private:
  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  template <typename T>
  T take(const char* name, const std::optional<T>& value, const char* expected) {
    if (!value && status_.ok()) {
      status_ = unsupported("its backend_config has a {} that is not {}", name, expected);
    }
    return value.value_or(T());
  }

  template <typename T>
  static std::optional<T> read(const Json& json) {
    if (!json.is_string()) {
      return std::nullopt;
    }
    const auto& text = json.get_ref<const std::string&>();
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
  }

  static std::optional<int64_t> integer(const Json& json) {
    if (json.is_number_integer()) {
      const bool fits = !json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX;
      return fits ? std::optional(json.get<int64_t>()) : std::nullopt;
    }
    return read<int64_t>(json);
  }

  const Json& object_;
  Status status_;
};

// XLA also reads names in another spelling, such as fmhaScale. They are refused, because they would otherwise count as
// missing.
Status check_spelling(const Json& object) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::any_of(name, [](char c) { return c >= 'A' && c <= 'Z'; })) {
      return unsupported("its backend_config has a field {}: only names in lower case are read", name);
    }
  }
  return {};
}

// The dimensions of each product follow from the layout of q, k and v. Scores are [batch, heads, queries, keys] in both
// layouts.
struct Product {
  const char* name;
  bool is_of_gradient;
  int64_t of_scores;  // the scores' dimension that it contracts; 0 if it computes scores, along the depth
};
constexpr Product kProducts[] = {
    {"bmm1_dot_dimension_numbers", false, 0},           {"bmm2_dot_dimension_numbers", false, 3},
    {"bmm1_grad_gemm1_dot_dimension_numbers", true, 2}, {"bmm1_grad_gemm2_dot_dimension_numbers", true, 3},
    {"bmm2_grad_gemm1_dot_dimension_numbers", true, 2}, {"bmm2_grad_gemm2_dot_dimension_numbers", true, 0}};

// The other fields that a configuration may have. A call with any other field is not fused, because its meaning is
// unknown.
constexpr std::string_view kOtherFields[] = {
    "algorithm",         "dropout_rate",       "fmha_scale", "force_deterministic",
    "is_causal_mask",    "is_flash_attention", "mask_type",  "intermediate_tensor_shape",
    "max_seg_per_batch", "is_paged_attention", "seed",       "sliding_window_length"};

Status check_names(const Json& json) {
  FLASHLIFT_RETURN_IF_ERROR(check_spelling(json));
  for (const auto& [name, value] : json.items()) {
    if (std::ranges::find(kOtherFields, name) == std::end(kOtherFields) &&
        std::ranges::none_of(kProducts, [&](const Product& product) { return name == product.name; })) {
      return unsupported("its backend_config has a field {}, which is not known", name);
    }
  }
  return {};
}

// Whether q, k and v are [batch, heads, length, depth]; otherwise they are [batch, length, heads, depth].
Result<bool> read_layout(const Json& json, bool is_backward) {
  using Dims = std::vector<int64_t>;
  std::optional<bool> heads_first;
  for (const Product& product : kProducts) {
    if (product.is_of_gradient != is_backward) {
      continue;
    }
    const auto found = json.find(product.name);
    if (found == json.end() || !found->is_object()) {
      return unsupported("its backend_config lacks {}", product.name);
    }
    FLASHLIFT_RETURN_IF_ERROR(check_spelling(*found));
    Fields fields(*found);
    const Dims rhs_batch = fields.whole_numbers("rhs_batch_dimensions");
    heads_first = heads_first.value_or(rhs_batch == Dims{0, 1});
    const Dims batch = *heads_first ? Dims{0, 1} : Dims{0, 2};
    const Dims length = {*heads_first ? 2 : 1}, depth = {3};
    const bool gives_scores = product.of_scores == 0;
    const bool fits =
        fields.whole_numbers("lhs_batch_dimensions") == (gives_scores ? batch : Dims{0, 1}) &&
        fields.whole_numbers("lhs_contracting_dimensions") == (gives_scores ? depth : Dims{product.of_scores}) &&
        rhs_batch == batch && fields.whole_numbers("rhs_contracting_dimensions") == (gives_scores ? depth : length);
    FLASHLIFT_RETURN_IF_ERROR(fields.status());
    if (!fits) {
      return unsupported(
          "by its {}, its operands are neither [batch, length, heads, depth] nor [batch, heads, length, depth]",
          product.name);
    }
  }
  return *heads_first;
}

Result<Config> read_config(std::string_view text, bool is_backward) {
  const Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = whole.is_object() ? whole.find("cudnn_fmha_backend_config") : whole.end();
  if (!whole.is_object() || found == whole.end() || !found->is_object()) {
    return unsupported("its backend_config is not a JSON text with a cudnn_fmha_backend_config");
  }
  const Json& json = *found;
  FLASHLIFT_RETURN_IF_ERROR(check_names(json));
  if (!json.contains("fmha_scale")) {  // XLA would use 0
    return unsupported("its backend_config lacks fmha_scale");
  }
  Fields fields(json);
  Config config;
  config.scale = fields.number("fmha_scale", 0);
  config.dropout = fields.number("dropout_rate", config.dropout);
  config.window = fields.whole_number("sliding_window_length", config.window);
  config.segments = fields.whole_number("max_seg_per_batch", config.segments);
  config.is_paged = fields.flag("is_paged_attention");
  config.is_causal = fields.flag("is_causal_mask");
  config.mask = fields.text("mask_type", config.mask.c_str());
  FLASHLIFT_RETURN_IF_ERROR(fields.status());
  FLASHLIFT_ASSIGN_OR_RETURN(config.heads_first, read_layout(json, is_backward));
  return config;
}

class Replacement {
 public:
  Replacement(mlir::Operation* op, bool gradients)
      : op_(op), gradients_(gradients), location_(op->getLoc()), builder_(op), target_(custom_call(op)->target) {}

  Result<Problem> run() {
    FLASHLIFT_RETURN_IF_ERROR(read_name());
    const auto text = mlir::dyn_cast_or_null<mlir::StringAttr>(custom_call(op_)->backend_config);
    if (!text) {
      return unsupported("its backend_config is not a text");
    }
    FLASHLIFT_ASSIGN_OR_RETURN(config_, read_config({text.data(), text.size()}, is_backward_));
    FLASHLIFT_RETURN_IF_ERROR(check_config());
    FLASHLIFT_RETURN_IF_ERROR(find_operands());
    FLASHLIFT_ASSIGN_OR_RETURN(problem_, make_problem());
    FLASHLIFT_RETURN_IF_ERROR(check_results());
    if (is_backward_) {
      write_backward();
    } else {
      write_forward();
    }
    op_->erase();
    return problem_;
  }

 private:
  // "__cudnn$fmhaScaleBiasSoftmaxDropoutBackward"
  Status read_name() {
    std::string_view rest = std::string_view(target_).substr(kPrefix.size());
    const auto take = [&](std::string_view word) {
      const bool found = rest.starts_with(word);
      rest.remove_prefix(found ? word.size() : 0);
      return found;
    };
    has_bias_ = take("ScaleBias");
    const bool is_softmax = take("Softmax");
    (void)take("Dropout");
    is_backward_ = take("Backward");
    if (!is_softmax || !rest.empty()) {
      return unsupported("'{}' has no counterpart in Flashlift", target_);
    }
    return {};
  }

  Status check_config() const {
    if (config_.dropout != 0) {
      return unsupported("its dropout leaves out other keys than Flashlift's would");
    }
    if (config_.is_paged) {
      return unsupported("its keys are paged");
    }
    if (config_.segments != 1) {
      return unsupported("its batches hold several sequences each (max_seg_per_batch)");
    }
    if (config_.mask != "NO_MASK" && config_.mask != "CAUSAL" && config_.mask != "PADDING" &&
        config_.mask != "PADDING_CAUSAL") {
      return unsupported("its mask_type is {}", config_.mask);
    }
    if (config_.is_causal && !is_causal()) {
      return unsupported("its is_causal_mask and its mask_type {} contradict each other", config_.mask);
    }
    if (config_.window < 0 || (config_.window > 0 && !is_causal())) {
      return unsupported("its sliding window has no causal mask");
    }
    if (!gradients_ && is_backward_) {
      return unsupported("a gradient is fused only if gradients are requested");
    }
    return {};
  }

  bool is_causal() const { return config_.mask == "CAUSAL" || config_.mask == "PADDING_CAUSAL"; }
  bool has_lengths() const { return config_.mask.starts_with("PADDING"); }

  // The operands of the forward call are q, k, v, [bias], [lengths of queries, lengths of keys]. Those of the backward
  // call are q, k, v, log-sum-exp, the output's gradient, [bias], output, [lengths of queries, lengths of keys].
  Status find_operands() {
    const size_t expected = (is_backward_ ? 6U : 3U) + (has_bias_ ? 1U : 0U) + (has_lengths() ? 2U : 0U);
    if (op_->getNumOperands() != expected) {
      return unsupported("it has {}, where {} are expected", counted(op_->getNumOperands(), "operand"), expected);
    }
    for (const mlir::Value operand : op_->getOperands()) {
      if (!static_tensor(operand)) {
        return unsupported("an operand is not a tensor of known sizes");
      }
    }
    unsigned next = 0;
    const auto take = [&] { return op_->getOperand(next++); };
    q_ = take();
    k_ = take();
    v_ = take();
    if (is_backward_) {
      lse_ = take();
      d_out_ = take();
    }
    bias_ = has_bias_ ? take() : mlir::Value();
    if (is_backward_) {
      out_ = take();
    }
    if (has_lengths()) {
      q_lengths_ = take();
      kv_lengths_ = take();
    }
    return {};
  }

  Result<Problem> make_problem() {
    for (const mlir::Value value : {q_, k_, v_}) {
      if (shape(value).size() != 4 || dtype(value.getType()) != dtype(q_.getType())) {
        return unsupported("q, k and v are not of rank 4 and of one type");
      }
    }
    const std::optional<DType> type = dtype(q_.getType());
    if (type != DType::kF16 && type != DType::kBF16 && type != DType::kF32) {
      return unsupported("its q is neither f16, bf16 nor f32");
    }
    const unsigned heads = config_.heads_first ? 1 : 2;
    const unsigned length = config_.heads_first ? 2 : 1;
    const auto q = shape(q_), k = shape(k_), v = shape(v_);
    if (k[0] != q[0] || v[0] != q[0] || v[heads] != k[heads] || v[length] != k[length] || k[3] != q[3]) {
      return unsupported("the sizes of q, k and v do not fit each other");
    }
    std::string text = fmt::format("attn b{} hq{} hkv{} sq{} skv{} dqk{} dv{} {} scale={}", q[0], q[heads], k[heads],
                                   q[length], k[length], q[3], v[3], to_string(*type), config_.scale);
    if (is_causal()) {
      text += " causal";
    }
    if (config_.window > 0) {
      text += fmt::format(" window={},0", config_.window - 1);
    }
    if (is_backward_ || op_->getNumResults() == 3) {
      text += " lse";
    }
    if (has_bias_) {
      const std::optional<DType> bias_type = dtype(bias_.getType());
      if (!bias_type || shape(bias_).size() != 4) {
        return unsupported("its bias is not a float tensor of rank 4");
      }
      text += fmt::format(" bias={}", to_string(*bias_type));
    }
    if (has_lengths()) {
      for (const mlir::Value lengths : {q_lengths_, kv_lengths_}) {
        if (dtype(lengths.getType()) != DType::kI32 || shape(lengths) != llvm::ArrayRef<int64_t>{q[0]}) {
          return unsupported("its lengths are not i32[{}]", q[0]);
        }
      }
      // A query beyond the length has no key, so that its row is zeros.
      text += fmt::format(
          " key_lengths mask_mod(q_lengths: i32[{}]) {{ %0 = load q_lengths[b]; %1 = lt q, %0; return %1 }}", q[0]);
    }
    Result<Problem> problem = parse_problem(text);
    if (!problem.ok()) {
      return unsupported("{}", problem.error().message);
    }
    if (const Status verified = verify(*problem); !verified.ok()) {
      return unsupported("{}", verified.error().message);
    }
    return problem;
  }

  // The result's shape: first in the operands' layout, then in cuDNN's.
  llvm::SmallVector<int64_t> result_shape(llvm::ArrayRef<int64_t> sizes) const {
    return config_.heads_first ? llvm::SmallVector<int64_t>(sizes)
                               : llvm::SmallVector<int64_t>{sizes[0], sizes[2], sizes[1], sizes[3]};
  }
  llvm::SmallVector<int64_t> out_shape() const {
    llvm::SmallVector<int64_t> sizes(shape(q_));
    sizes[3] = shape(v_)[3];
    return sizes;
  }

  Status check_results() const {
    const unsigned count = op_->getNumResults();
    const auto is = [&](unsigned index, llvm::ArrayRef<int64_t> sizes) {
      return static_tensor(op_->getResult(index)) && shape(op_->getResult(index)) == sizes;
    };
    const int64_t heads = shape(q_)[config_.heads_first ? 1 : 2], length = shape(q_)[config_.heads_first ? 2 : 1];
    const llvm::SmallVector<int64_t> rows = {shape(q_)[0], heads, length};
    bool fits = false;
    if (is_backward_) {
      fits = (count == 4 || (count == 5 && has_bias_)) && is(0, result_shape(shape(q_))) &&
             is(1, result_shape(shape(k_))) && is(2, result_shape(shape(v_))) && shape(lse_) == llvm::ArrayRef(rows) &&
             shape(out_) == llvm::ArrayRef(out_shape()) && shape(d_out_) == llvm::ArrayRef(out_shape()) &&
             (count == 4 || op_->getResult(3).getType() == bias_.getType());
    } else {
      fits = (count == 2 || count == 3) && is(0, result_shape(out_shape())) && (count == 2 || is(1, rows));
    }
    if (!fits) {
      return unsupported("its results are not those that cuDNN gives for these operands");
    }
    if (!op_->getResult(count - 1).use_empty()) {
      return unsupported("the module reads its workspace");
    }
    if (!is_backward_ && !gradients_ && count == 3 && feeds_gradient(op_->getResult(1))) {
      return unsupported("the module contains its gradient; request gradients to fuse both");
    }
    return {};
  }

  static bool feeds_gradient(mlir::Value lse) {
    return llvm::any_of(lse.getUsers(), [](mlir::Operation* user) { return is_cudnn_attention(user); });
  }

  mlir::Value capture(const std::string& name) const {
    return name == "bias" ? bias_ : name == "q_lengths" ? q_lengths_ : kv_lengths_;
  }

  llvm::SmallVector<mlir::Value> forward_operands() const {
    llvm::SmallVector<mlir::Value> operands = {q_, k_, v_};
    for (const Capture& each : problem_.captures) {
      operands.push_back(capture(each.name));
    }
    return operands;
  }

  mlir::DictionaryAttr configuration(const std::string& gradients) {
    llvm::SmallVector<mlir::NamedAttribute> entries;
    const auto add = [&](llvm::StringRef name, const std::string& value) {
      entries.emplace_back(builder_.getStringAttr(name), builder_.getStringAttr(value));
    };
    const std::string dims = config_.heads_first ? "bhsd" : "bshd";
    add("problem", print(problem_));
    for (const char* name : {"q_dims", "k_dims", "v_dims", "out_dims"}) {
      add(name, dims);
    }
    if (problem_.want_lse) {
      add("lse_dims", "bhs");
    }
    if (!gradients.empty()) {
      add("gradients", gradients);
    }
    return builder_.getDictionaryAttr(entries);
  }

  mlir::RankedTensorType like(mlir::Value value, llvm::ArrayRef<int64_t> sizes) const {
    return mlir::RankedTensorType::get(sizes, mlir::cast<mlir::RankedTensorType>(value.getType()).getElementType());
  }

  // Transposes the call's [batch, length, heads, depth] to cuDNN's [batch, heads, length, depth].
  void replace(unsigned index, mlir::Value made) {
    const llvm::SmallVector<int64_t> permutation = {0, 2, 1, 3};
    op_->getResult(index).replaceAllUsesWith(config_.heads_first ? made
                                                                 : transpose(builder_, location_, made, permutation));
  }

  void write_forward() {
    llvm::SmallVector<mlir::Type> types = {like(q_, out_shape())};
    if (problem_.want_lse) {
      types.push_back(op_->getResult(1).getType());
    }
    mlir::Operation* call =
        fused_call(builder_, location_, "flashlift.attention", forward_operands(), types, configuration({}));
    replace(0, call->getResult(0));
    if (problem_.want_lse) {
      op_->getResult(1).replaceAllUsesWith(call->getResult(1));
    }
  }

  void write_backward() {
    llvm::SmallVector<mlir::Value> operands = forward_operands();
    std::string gradients = "0 1 2";
    llvm::SmallVector<mlir::Type> types = {q_.getType(), k_.getType(), v_.getType()};
    const bool wants_bias = op_->getNumResults() == 5;
    for (size_t i = 3; wants_bias && i < operands.size(); ++i) {
      if (operands[i] == bias_) {
        gradients += " " + std::to_string(i);
        types.push_back(bias_.getType());
      }
    }
    const auto rows = mlir::cast<mlir::RankedTensorType>(lse_.getType());
    const mlir::NamedAttribute zeros(builder_.getStringAttr("value"), mlir::DenseElementsAttr::get(rows, 0.0f));
    const mlir::Value d_lse =
        build(builder_, location_, "stablehlo.constant", {}, mlir::TypeRange(rows), zeros)->getResult(0);
    operands.append({out_, lse_, d_out_, d_lse});
    mlir::Operation* call =
        fused_call(builder_, location_, "flashlift.attention_backward", operands, types, configuration(gradients));
    for (unsigned i = 0; i < 3; ++i) {
      replace(i, call->getResult(i));
    }
    if (wants_bias) {
      op_->getResult(3).replaceAllUsesWith(call->getResult(3));
    }
  }

  mlir::Operation* op_;
  bool gradients_;
  mlir::Location location_;
  mlir::OpBuilder builder_;
  std::string target_;
  bool has_bias_ = false;
  bool is_backward_ = false;
  Config config_;
  Problem problem_;
  mlir::Value q_, k_, v_, bias_, q_lengths_, kv_lengths_, lse_, d_out_, out_;
};

}  // namespace

bool is_cudnn_attention(mlir::Operation* op) {
  return kind(op) == OpKind::kCustomCall && custom_call(op)->target.starts_with(kPrefix);
}

Result<Problem> replace_cudnn_attention(mlir::Operation* op, bool gradients) {
  return Replacement(op, gradients).run();
}

}  // namespace flashlift::stablehlo
