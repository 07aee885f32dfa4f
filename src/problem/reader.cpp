#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "flashlift/problem.h"
#include "problem/features.h"
#include "problem/options.h"
#include "problem/problem_text.h"
#include "problem/sizes.h"
#include "problem/word_texts.h"
#include "support/error.h"

namespace flashlift {
namespace {

constexpr size_t kMaxProblemText = 4 * kMaxProgramText;

bool parse_whole(std::string_view text, int64_t& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Result<problem::ProblemText> read() {
    if (const std::string_view first = next_word(); first != "attn") {
      return invalid_argument("a problem starts with `attn`, as in `attn b1 h8 s1024 d64 f32 causal`; got {}",
                              first.empty() ? "no word" : fmt::format("`{}`", first));
    }
    while (skip_space(), !rest_.empty()) {
      if (rest_.starts_with("score_mod") || rest_.starts_with("mask_mod")) {
        FLASHLIFT_RETURN_IF_ERROR(read_program());
      } else {
        FLASHLIFT_RETURN_IF_ERROR(read_word(next_word()));
      }
    }
    return std::move(read_);
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
    auto& slot = program->kind == ProgramKind::kScoreMod ? read_.score_mod : read_.mask_mod;
    if (slot) {
      return invalid_argument("the problem has two {}s; write them as one program",
                              program->kind == ProgramKind::kScoreMod ? "score_mod" : "mask_mod");
    }
    slot = *program;
    rest_.remove_prefix(end + 1);
    return {};
  }

  Status read_word(std::string_view word) {
    if (const auto dtype = parse_dtype(word)) {
      read_.dtype = dtype;
      return once("dtype");
    }
    const size_t equals = word.find('=');
    if (equals != std::string_view::npos || word.find_first_of("0123456789") == std::string_view::npos) {
      const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
      return read_option(word.substr(0, equals), value);
    }
    return read_size(word);
  }

  // A name followed by its number: b2, hq32.
  Status read_size(std::string_view word) {
    const size_t digits = word.find_first_of("0123456789");
    const std::string name(word.substr(0, digits));
    int64_t value = 0;
    if (!is_size(name) || !parse_whole(word.substr(digits), value)) {
      return unknown(word);
    }
    FLASHLIFT_RETURN_IF_ERROR(once(name));
    read_.sizes[name] = value;
    return {};
  }

  static bool is_size(std::string_view name) {
    return std::ranges::any_of(problem::sizes(), [&](const problem::Size& size) {
      const std::array<const char*, 3> names = {size.name, size.first, size.second};
      return std::ranges::any_of(names, [&](const char* one) { return one != nullptr && name == one; });
    });
  }

  Status read_option(std::string_view name, std::string_view value) {
    FLASHLIFT_RETURN_IF_ERROR(once(std::string(name)));
    for (const problem::Feature& feature : problem::features()) {
      if (name == feature.word.name) {
        return read_.features.add(feature, value);
      }
    }
    for (const problem::Option& option : problem::options()) {
      if (name == option.word.name) {
        FLASHLIFT_ASSIGN_OR_RETURN(problem::Given given, problem::read_value(option.word, value));
        read_.options.emplace_back(&option, std::move(given));
        return {};
      }
    }
    return unknown(value.empty() ? name : fmt::format("{}={}", name, value));
  }

  Status once(const std::string& name) {
    if (!seen_.insert(name).second) {
      return invalid_argument("`{}` is given twice", name);
    }
    return {};
  }

  static Error unknown(std::string_view word) {
    const std::string_view name = word.substr(0, word.find_first_not_of("abcdefghijklmnopqrstuvwxyz"));
    const std::string_view value = word.substr(name.size());
    // Other characters make another word, such as `d_outt=inputs`, which suggestions explain.
    const bool is_number = value.empty() || std::string_view("0123456789+-.=").find(value.front()) != value.npos;
    if (is_number && is_size(name)) {
      return invalid_argument("`{}` expects an integer, as in `{}8`, got `{}`", name, name, value);
    }
    return invalid_argument("{}", problem::unknown_word(word));
  }

  std::string_view rest_;
  problem::ProblemText read_;
  std::set<std::string> seen_;
};

Status set_size(const problem::Size& size, const std::map<std::string, int64_t>& given, Problem& problem) {
  const auto at = [&](const char* name) { return name == nullptr ? given.end() : given.find(name); };
  const auto both = at(size.name);
  const auto first = at(size.first);
  const auto second = at(size.second);
  const bool has_both = both != given.end();
  const bool has_parts = first != given.end() || second != given.end();
  if (size.first == nullptr) {
    problem.*size.of_first = has_both ? both->second : problem.*size.of_first;
  } else if (has_both == has_parts) {
    return invalid_argument("give either {}<N>, or {}<N> and {}<N>", size.name, size.first, size.second);
  } else if (has_both) {
    problem.*size.of_first = problem.*size.of_second = both->second;
  } else if (first == given.end() || second == given.end()) {
    return invalid_argument("give both {} and {}, or {} for both", size.first, size.second, size.name);
  } else {
    problem.*size.of_first = first->second;
    problem.*size.of_second = second->second;
  }
  return {};
}

Result<Problem> to_problem(problem::ProblemText text) {
  Problem problem;
  for (const problem::Size& size : problem::sizes()) {
    FLASHLIFT_RETURN_IF_ERROR(set_size(size, text.sizes, problem));
  }
  problem.dtype = problem.out_dtype = text.dtype.value_or(DType::kF32);
  problem.scale =
      problem.head_dim > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.head_dim))) : 1.0f;
  for (const auto& [option, value] : text.options) {
    option->set(problem, value);
  }
  problem.score_mod = std::move(text.score_mod);
  problem.mask_mod = std::move(text.mask_mod);
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, problem.mask_mod));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));  // before features divide by sizes, which may be 0
  FLASHLIFT_RETURN_IF_ERROR(text.features.apply(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  return problem;
}

}  // namespace

Result<problem::ProblemText> problem::read_text(std::string_view text) {
  if (text.size() > kMaxProblemText) {
    return invalid_argument("a problem's text has at most {} bytes, this one has {}", kMaxProblemText, text.size());
  }
  return Reader(text).read();
}

Result<Problem> parse_problem(std::string_view text) {
  FLASHLIFT_ASSIGN_OR_RETURN(problem::ProblemText read, problem::read_text(text));
  return to_problem(std::move(read));
}

}  // namespace flashlift
