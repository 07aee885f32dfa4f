// "did you mean ...?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashlift {

// The known words that `word` is nearest to, as people mistype them: a letter too many, too few, another one, two
// exchanged, or letters of the other case. Empty if none is near.
std::vector<std::string_view> similar_words(std::string_view word, const std::vector<std::string_view>& known);

// "did you mean `a` or `b`?", or "" if there is none.
std::string did_you_mean(const std::vector<std::string>& words);

}  // namespace flashlift
