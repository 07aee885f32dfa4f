// A problem's text as words, before these are converted to a problem.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "problem/features.h"
#include "problem/options.h"

namespace flashlift::problem {

struct ProblemText {
  std::map<std::string, int64_t> sizes;  // by their words
  std::optional<DType> dtype;
  GivenFeatures features;
  std::vector<std::pair<const Option*, Given>> options;
  std::optional<Program> score_mod;
  std::optional<Program> mask_mod;
};

// Fails if a word is unknown, is given twice or does not accept its value, and if a program is malformed. Does not
// check for missing words, or for words that exclude each other.
Result<ProblemText> read_text(std::string_view text);

// {"sizes": {"b": 2}, "dtype": "bf16", "words": {"causal": true, "window": [128, 0], "softcap": 30, "mask": "bool"},
//  "score_mod": "score_mod(...) {...}", "mask_mod": null}. A word without a value is `true`.
std::string as_json(const ProblemText& text);

}  // namespace flashlift::problem
