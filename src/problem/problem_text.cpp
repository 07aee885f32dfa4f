#include "problem/problem_text.h"

#include <fmt/format.h>

namespace flashlift::problem {
namespace {

std::string value_as_json(const Word& word, const Given& given) {
  switch (word.value.kind) {
    case Value::Kind::kNone:
      return "true";
    case Value::Kind::kChoice:
      return given.text.empty() ? "true" : fmt::format("\"{}\"", given.text);
    case Value::Kind::kWhole:
      return fmt::format("{}", given.whole);
    case Value::Kind::kPair:
      return fmt::format("[{}, {}]", given.whole, given.second);
    case Value::Kind::kReal:
      return fmt::format("{}", given.real);
  }
  return "null";
}

std::string program_as_json(const std::optional<Program>& program) {
  return program ? fmt::format("\"{}\"", print_one_line(*program)) : "null";
}

void add(std::string& object, std::string_view name, const std::string& value) {
  object += fmt::format("{}\"{}\": {}", object.empty() ? "" : ", ", name, value);
}

}  // namespace

// Names and programs contain no characters that JSON must escape.
std::string as_json(const ProblemText& text) {
  std::string sizes;
  for (const auto& [name, size] : text.sizes) {
    add(sizes, name, std::to_string(size));
  }
  std::string words;
  for (const GivenFeature& feature : text.features.all()) {
    add(words, feature.row->word.name, value_as_json(feature.row->word, feature.value));
  }
  for (const auto& [option, given] : text.options) {
    add(words, option->word.name, value_as_json(option->word, given));
  }
  const std::string dtype = text.dtype ? fmt::format("\"{}\"", to_string(*text.dtype)) : "null";
  return fmt::format(R"({{"sizes": {{{}}}, "dtype": {}, "words": {{{}}}, "score_mod": {}, "mask_mod": {}}})", sizes,
                     dtype, words, program_as_json(text.score_mod), program_as_json(text.mask_mod));
}

}  // namespace flashlift::problem
