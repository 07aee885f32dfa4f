// A word of the problem text, as its table has it, and the value behind its `=`.
//
// There are three tables: features.cpp (words that become programs), options.cpp (words that set a field) and
// sizes.cpp. The reader, its errors, the printer, docs/problem.md, the command line's help, flashlift.Problem, the
// fuzzer's dictionary and the random problems of the tests are made from them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::problem {

// What may stand behind `word=`.
struct Value {
  enum class Kind : uint8_t { kNone, kChoice, kWhole, kPair, kReal };

  Kind kind = Kind::kNone;
  const char* form = "";      // as help writes it, such as <N>; of a choice: its words, separated by |
  bool is_optional = false;   // `word` alone is right, too
  const char* expected = "";  // of a real number: for "`word` expects ..."
  double least = 0;           // of numbers
  double most = 0;
};

constexpr int64_t kMostWhole = int64_t{1} << 30;

constexpr Value no_value() { return {}; }
// one_of("zero|uniform|nan")
constexpr Value one_of(const char* words) { return {.kind = Value::Kind::kChoice, .form = words}; }
constexpr Value perhaps(const char* words) {
  return {.kind = Value::Kind::kChoice, .form = words, .is_optional = true};
}
constexpr Value whole_number(int64_t least) {
  return {.kind = Value::Kind::kWhole, .form = "<N>", .least = static_cast<double>(least), .most = kMostWhole};
}
// One number from 0 for both, or two.
constexpr Value one_or_two_numbers(const char* form) {
  return {.kind = Value::Kind::kPair, .form = form, .most = kMostWhole};
}
constexpr Value finite_number() {
  return {.kind = Value::Kind::kReal,
          .form = "<x>",
          .expected = "a finite number",
          .least = std::numeric_limits<float>::lowest(),
          .most = std::numeric_limits<float>::max()};
}
constexpr Value positive_number() {
  return {.kind = Value::Kind::kReal,
          .form = "<x>",
          .expected = "a positive number",
          .least = std::numeric_limits<float>::denorm_min(),
          .most = std::numeric_limits<float>::max()};
}
constexpr Value probability() {
  return {.kind = Value::Kind::kReal,
          .form = "<p>",
          .expected = "a probability from 0 to below 1",
          .least = 0,
          .most = 1 - std::numeric_limits<float>::epsilon() / 2};
}

struct Word {
  const char* name;
  Value value = no_value();
  const char* examples = "";  // of values that are numbers, separated by spaces
  const char* doc;            // the meaning, in Markdown
  const char* without = "";   // what holds without the word
};

// A value as it was read.
struct Given {
  std::string text;
  int64_t whole = 0;
  int64_t second = 0;  // of one_or_two_numbers()
  float real = 0;
  size_t choice = 0;  // the place of the text among the choices

  DType dtype() const { return *parse_dtype(text); }  // of a choice between dtypes
};

// Errors: the word does not take this value.
Result<Given> read_value(const Word& word, std::string_view text);

// "zero|uniform|nan" as its parts.
std::vector<std::string_view> choices(const Value& value);
// A word as help writes it: causal[=bottom_right], window=<left>[,<right>].
std::string form_of(const Word& word);

}  // namespace flashlift::problem
