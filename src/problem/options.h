// The words of the problem text that set a field of the problem: one row each, in options.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "flashlift/problem.h"
#include "problem/words.h"

namespace flashlift::problem {

struct Option {
  Word word;
  void (*set)(Problem& problem, const Given& given);  // called after sizes, dtype and all defaults were set
  // The word's value for print(); nothing: print() omits the word.
  std::optional<std::string> (*value_in)(const Problem& problem);
};

std::span<const Option> options();

}  // namespace flashlift::problem
