#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "flashlift/problem.h"
#include "problem/features.h"
#include "support/error.h"

namespace flashlift {
namespace {

constexpr size_t kMaxProblemText = 4 * kMaxProgramText;

template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Result<Problem> read() {
    if (next_word() != "attn") {
      return invalid_argument("a problem starts with `attn`, as in `attn b1 h8 s1024 d64 f32 causal`");
    }
    while (skip_space(), !rest_.empty()) {
      if (rest_.starts_with("score_mod") || rest_.starts_with("mask_mod")) {
        FLASHLIFT_RETURN_IF_ERROR(read_program());
      } else {
        FLASHLIFT_RETURN_IF_ERROR(read_word(next_word()));
      }
    }
    return finish();
  }

 private:
  void skip_space() {
    const size_t start = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(std::min(start, rest_.size()));
  }

  std::string_view next_word() {
    skip_space();
    const std::string_view word = rest_.substr(0, rest_.find_first_of(" \t\r\n"));
    rest_.remove_prefix(word.size());
    return word;
  }

  Status read_program() {
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos) {
      return invalid_argument("a program of the problem has no closing `}}`");
    }
    const auto program = parse_program(rest_.substr(0, end + 1));
    if (!program.ok()) {
      return Error{program.error().kind, "in a program of the problem: " + program.error().message};
    }
    auto& slot = program->kind == ProgramKind::kScoreMod ? problem_.score_mod : problem_.mask_mod;
    if (slot) {
      return invalid_argument("the problem has two programs of one kind");
    }
    slot = *program;
    rest_.remove_prefix(end + 1);
    return {};
  }

  Status read_word(std::string_view word) {
    if (const auto dtype = parse_dtype(word)) {
      problem_.dtype = *dtype;
      return once("dtype");
    }
    const size_t equals = word.find('=');
    if (equals != std::string_view::npos || word.find_first_of("0123456789") == std::string_view::npos) {
      const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
      return read_option(word.substr(0, equals), value);
    }
    return read_size(word);
  }

  // b2, hq32: a name followed by its number.
  Status read_size(std::string_view word) {
    const size_t digits = word.find_first_of("0123456789");
    const std::string name(word.substr(0, digits));
    int64_t value = 0;
    static const std::set<std::string> kNames = {"b", "h", "hq", "hkv", "s", "sq", "skv", "d", "dqk", "dv"};
    if (!kNames.contains(name) || !parse_whole(word.substr(digits), value)) {
      return unknown(word);
    }
    FLASHLIFT_RETURN_IF_ERROR(once(name));
    sizes_[name] = value;
    return {};
  }

  Status read_option(std::string_view name, std::string_view value) {
    FLASHLIFT_RETURN_IF_ERROR(once(std::string(name)));
    if (name == "causal") {
      features_.causal = true;
      features_.bottom_right = value == "bottom_right";
      return value.empty() || features_.bottom_right ? Status() : bad_value(name, value, "`bottom_right` or nothing");
    }
    if (name == "segment_ids" || name == "key_lengths" || name == "cu_seqlens") {
      (name == "segment_ids"   ? features_.segment_ids
       : name == "key_lengths" ? features_.key_lengths
                               : features_.cu_seqlens) = true;
      return value.empty() ? Status() : bad_value(name, value, "no value");
    }
    if (name == "mask" || name == "bias" || name == "logits") {
      return read_dtype_option(name, value);
    }
    if (name == "lse" || name == "row_max" || name == "alibi" || name == "unnormalized") {
      (name == "alibi"     ? features_.alibi
       : name == "lse"     ? problem_.want_lse
       : name == "row_max" ? problem_.want_row_max
                           : problem_.normalize) = name != "unnormalized";
      return value.empty() ? Status() : bad_value(name, value, "no value");
    }
    if (name == "window") {
      return read_window(value);
    }
    if (name == "softcap" || name == "scale") {
      float number = 0;
      if (!parse_whole(value, number) || !std::isfinite(number) || (name == "softcap" && number <= 0)) {
        return bad_value(name, value, name == "scale" ? "a finite number" : "a positive number");
      }
      (name == "scale" ? scale_ : features_.softcap) = number;
      return {};
    }
    if (name == "dropout") {
      if (!parse_whole(value, problem_.dropout) || !(problem_.dropout >= 0 && problem_.dropout < 1)) {
        return bad_value(name, value, "a probability from 0 to below 1");
      }
      return {};
    }
    if (name == "prefix" || name == "documents" || name == "sinks" || name == "page_size") {
      int64_t number = 0;
      const int64_t least = name == "documents" || name == "page_size" ? 1 : 0;
      if (!parse_whole(value, number) || number < least || number > (1 << 30)) {
        return bad_value(name, value, fmt::format("an integer from {}", least));
      }
      if (name == "sinks" || name == "page_size") {
        (name == "sinks" ? problem_.sinks : problem_.page_size) = number;
      } else {
        (name == "prefix" ? features_.prefix : features_.documents) = number;
      }
      return {};
    }
    if (name == "out") {
      const auto dtype = parse_dtype(value);
      if (!dtype) {
        return bad_value(name, value, "f32, bf16 or f16");
      }
      out_dtype_ = dtype;
      return {};
    }
    if (name == "empty_rows") {
      for (const EmptyRows rows : {EmptyRows::kZero, EmptyRows::kUniform, EmptyRows::kNan}) {
        if (value == to_string(rows)) {
          problem_.empty_rows = rows;
          return {};
        }
      }
      return bad_value(name, value, "zero, uniform or nan");
    }
    return unknown(value.empty() ? name : fmt::format("{}={}", name, value));
  }

  Status read_dtype_option(std::string_view name, std::string_view value) {
    const auto dtype = parse_dtype(value);
    const bool is_mask = dtype == DType::kBool || dtype == DType::kI32;
    const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
    if (name == "mask" ? !is_mask : !(is_half || (name == "bias" && dtype == DType::kF32))) {
      return bad_value(name, value,
                       name == "mask"   ? "bool or i32"
                       : name == "bias" ? "f32, bf16 or f16"
                                        : "bf16 or f16 (scores are f32 without it)");
    }
    (name == "mask" ? features_.mask : name == "bias" ? features_.bias : features_.logits) = dtype;
    return {};
  }

  Status read_window(std::string_view value) {
    const size_t comma = value.find(',');
    int64_t left = 0;
    int64_t right = 0;
    const bool ok =
        parse_whole(value.substr(0, comma), left) &&
        (comma == std::string_view::npos ? (right = left, true) : parse_whole(value.substr(comma + 1), right));
    constexpr int64_t kLimit = 1 << 30;
    if (!ok || left < 0 || right < 0 || left > kLimit || right > kLimit) {
      return bad_value("window", value, "<left> or <left>,<right>, each from 0");
    }
    features_.window_left = left;
    features_.window_right = right;
    return {};
  }

  Status once(const std::string& name) {
    if (!seen_.insert(name).second) {
      return invalid_argument("`{}` is given twice", name);
    }
    return {};
  }

  static Error bad_value(std::string_view name, std::string_view value, std::string_view expected) {
    return invalid_argument("`{}` expects {}, got `{}`", name, expected, value);
  }

  static Error unknown(std::string_view word) {
    return invalid_argument(
        "unknown word `{}` in a problem; expected sizes (b2 h8 hq8 hkv2 s1024 sq1 skv1024 d64 dqk192 dv128), a dtype "
        "(f32 bf16 f16), out= scale= causal window= prefix= documents= segment_ids key_lengths cu_seqlens mask= bias= "
        "logits= "
        "softcap= alibi sinks= lse row_max "
        "unnormalized empty_rows= dropout= page_size=, or a program",
        word);
  }

  // Sets both fields from `both` or each from its own name.
  Status pick(const char* both, const char* first, const char* second, int64_t& x, int64_t& y) {
    if (sizes_.contains(both) != (sizes_.contains(first) || sizes_.contains(second))) {
      const bool given = sizes_.contains(both);
      if (!given && !(sizes_.contains(first) && sizes_.contains(second))) {
        return invalid_argument("give both {} and {}, or {} for both", first, second, both);
      }
      x = sizes_[given ? both : first];
      y = sizes_[given ? both : second];
      return {};
    }
    return invalid_argument("give either {}<N>, or {}<N> and {}<N>", both, first, second);
  }

  Result<Problem> finish() {
    if (sizes_.contains("b")) {
      problem_.batch = sizes_["b"];
    }
    FLASHLIFT_RETURN_IF_ERROR(pick("h", "hq", "hkv", problem_.q_heads, problem_.kv_heads));
    FLASHLIFT_RETURN_IF_ERROR(pick("s", "sq", "skv", problem_.q_len, problem_.kv_len));
    FLASHLIFT_RETURN_IF_ERROR(pick("d", "dqk", "dv", problem_.head_dim, problem_.value_dim));
    problem_.out_dtype = out_dtype_.value_or(problem_.dtype);
    problem_.captures = {};
    problem_.scale = scale_.value_or(
        problem_.head_dim > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem_.head_dim))) : 1.0f);
    FLASHLIFT_ASSIGN_OR_RETURN(problem_.captures, collect_captures(problem_.score_mod, problem_.mask_mod));
    FLASHLIFT_RETURN_IF_ERROR(verify(problem_));  // before the features divide by what may be 0
    FLASHLIFT_RETURN_IF_ERROR(problem::apply_features(features_, problem_));
    FLASHLIFT_RETURN_IF_ERROR(verify(problem_));
    return std::move(problem_);
  }

  std::string_view rest_;
  Problem problem_;
  problem::Features features_;
  std::optional<float> scale_;
  std::optional<DType> out_dtype_;
  std::map<std::string, int64_t> sizes_;
  std::set<std::string> seen_;
};

}  // namespace

Result<Problem> parse_problem(std::string_view text) {
  if (text.size() > kMaxProblemText) {
    return invalid_argument("a problem's text has at most {} bytes, this one has {}", kMaxProblemText, text.size());
  }
  return Reader(text).read();
}

}  // namespace flashlift
