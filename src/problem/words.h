// A word of the problem text in a table, and the value after its `=`.
//
// There are three tables: features.cpp (words that become programs), options.cpp (words that set a field) and
// sizes.cpp. The reader, its errors, the printer, docs/problem.md, the command line's help, flashlift.Problem, the
// fuzzer's dictionary and the random problems of the tests are generated from them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::problem {

// The kind of values after `word=`.
struct Value {
  enum class Kind : uint8_t { kNone, kChoice, kWhole, kPair, kReal };

  Kind kind = Kind::kNone;
  const char* form = "";      // as in help, such as <N>; for a choice, its words separated by |
  bool is_optional = false;   // `word` without a value is allowed, too
  const char* expected = "";  // of a real number: for "`word` expects ..."
  double least = 0;           // for numbers
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
// One number from 0 on for both, or two numbers.
constexpr Value one_or_two_numbers(const char* form) {
  return {.kind = Value::Kind::kPair, .form = form, .most = kMostWhole};
}
constexpr Value finite_number() {
  return {.kind = Value::Kind::kReal,
          .form = "<x>",
          .expected = "0 or a number of 1e-45 to 3.4e38 in size, the range of f32",
          .least = std::numeric_limits<float>::lowest(),
          .most = std::numeric_limits<float>::max()};
}
constexpr Value positive_number() {
  return {.kind = Value::Kind::kReal,
          .form = "<x>",
          .expected = "a positive number of 1e-45 to 3.4e38, the range of f32",
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
  const char* examples = "";  // for numbers, separated by spaces
  const char* doc;            // the meaning, in Markdown
  const char* without = "";   // the behaviour without the word
};

// A value that was read.
struct Given {
  std::string text;
  int64_t whole = 0;
  int64_t second = 0;  // for one_or_two_numbers()
  float real = 0;
  size_t choice = 0;  // index among the choices

  DType dtype() const { return *parse_dtype(text); }  // for a choice between dtypes
};

// Fails if the word does not accept this value.
Result<Given> read_value(const Word& word, std::string_view text);

// Splits "zero|uniform|nan".
std::vector<std::string_view> choices(const Value& value);
// A word as in help: causal[=bottom_right], window=<left>[,<right>].
std::string form_of(const Word& word);

}  // namespace flashlift::problem
