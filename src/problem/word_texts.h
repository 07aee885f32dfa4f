// The words of the problem text and their descriptions from the tables, for people and other programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashlift::problem {

struct WordText {
  const char* group;  // "sizes", "masks", "scores", "options", "programs"
  std::string name;
  std::vector<std::string> forms;     // as help writes it: {"h<N>", "hq<N> hkv<N>"}, {"causal[=bottom_right]"}
  std::vector<std::string> examples;  // {"h8", "hq32 hkv8"}, {"causal", "causal=bottom_right"}, {"softcap=30"}
  std::string doc;                    // the meaning, in Markdown
  std::string without;                // what holds without the word; or ""
  std::vector<std::string> captures;  // the captured tensors of a feature: "q_segments: i32[1|batch,q_len]"
};

// All of them, in the order of the documentation.
std::vector<WordText> word_texts();
// As a JSON array of objects with these fields.
std::string words_as_json();
// All words that a text may contain, for a fuzzer.
std::vector<std::string> dictionary();
// The error for an unknown word, with words that may have been meant.
std::string unknown_word(std::string_view word);

}  // namespace flashlift::problem
