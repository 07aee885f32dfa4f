#include <fmt/format.h>

#include "flashlift/problem.h"
#include "problem/options.h"
#include "problem/sizes.h"

namespace flashlift {

std::string print(const Problem& problem) {
  std::string text = "attn";
  for (const problem::Size& size : problem::sizes()) {
    text += fmt::format(" {}{}", size.first == nullptr ? size.name : size.first, problem.*size.of_first);
    if (size.second != nullptr) {
      text += fmt::format(" {}{}", size.second, problem.*size.of_second);
    }
  }
  text += fmt::format(" {}", to_string(problem.dtype));
  for (const problem::Option& option : problem::options()) {
    if (const std::optional<std::string> value = option.value_in(problem)) {
      text += fmt::format(" {}{}{}", option.word.name, value->empty() ? "" : "=", *value);
    }
  }
  for (const auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (program->has_value()) {
      text += " " + print_one_line(**program);
    }
  }
  return text;
}

}  // namespace flashlift
