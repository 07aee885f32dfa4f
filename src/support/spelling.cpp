#include "support/spelling.h"

#include <algorithm>
#include <cctype>

namespace flashlift {
namespace {

constexpr size_t kLongestWord = 64;  // longer texts are not compared

char lower(char letter) { return static_cast<char>(std::tolower(static_cast<unsigned char>(letter))); }

// The number of letters that are added, removed, replaced or swapped with their neighbour.
size_t distance(std::string_view x, std::string_view y) {
  std::vector<size_t> before_last;
  std::vector<size_t> last(y.size() + 1);
  for (size_t j = 0; j <= y.size(); ++j) {
    last[j] = j;
  }
  for (size_t i = 1; i <= x.size(); ++i) {
    std::vector<size_t> row(y.size() + 1);
    row[0] = i;
    for (size_t j = 1; j <= y.size(); ++j) {
      const bool same = lower(x[i - 1]) == lower(y[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(x[i - 1]) == lower(y[j - 2]) && lower(x[i - 2]) == lower(y[j - 1])) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last[y.size()];
}

}  // namespace

std::vector<std::string_view> similar_words(std::string_view word, const std::vector<std::string_view>& known) {
  std::vector<std::string_view> nearest;
  if (word.size() < 2 || word.size() > kLongestWord) {
    return nearest;
  }
  size_t least = std::max<size_t>(1, word.size() / 3);
  for (const std::string_view candidate : known) {
    const size_t changes = distance(word, candidate);
    if (changes < least) {
      nearest.clear();
      least = changes;
    }
    if (changes == least && changes < candidate.size()) {
      nearest.push_back(candidate);
    }
  }
  return nearest;
}

std::string did_you_mean(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + ("`" + words[i] + "`");
  }
  return text.empty() ? "" : "did you mean " + text + "?";
}

}  // namespace flashlift
