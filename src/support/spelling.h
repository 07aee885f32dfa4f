// "did you mean ...?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashlift {

// The known words most similar to `word` for usual typing errors: an additional, missing or wrong letter, two swapped
// letters, or wrong case. Empty if none is similar.
std::vector<std::string_view> similar_words(std::string_view word, const std::vector<std::string_view>& known);

// "did you mean `a` or `b`?", or "" if there is none.
std::string did_you_mean(const std::vector<std::string>& words);

}  // namespace flashlift
