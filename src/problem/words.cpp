#include "problem/words.h"

#include <charconv>

#include "support/error.h"

namespace flashlift::problem {
namespace {

template <typename T>
bool read_whole(std::string_view text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool admits(const Value& value, double number) {
  return number >= value.least && number <= value.most;
}  // false for NaN

// "zero, uniform or nan"
std::string listed(const std::vector<std::string_view>& words) {
  std::string text(words.front());
  for (size_t i = 1; i < words.size(); ++i) {
    text += fmt::format("{}{}", i + 1 == words.size() ? " or " : ", ", words[i]);
  }
  return text;
}

std::string expected(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return "no value";
    case Value::Kind::kChoice:
      return listed(choices(value)) + (value.is_optional ? ", or no value" : "");
    case Value::Kind::kWhole:
      return fmt::format("an integer from {} to {}", value.least, value.most);
    case Value::Kind::kPair:
      return fmt::format("{}, each an integer from {} to {}", value.form, value.least, value.most);
    case Value::Kind::kReal:
      return value.expected;
  }
  return "";
}

bool read_choice(const Value& value, Given& given) {
  for (const std::string_view choice : choices(value)) {
    if (choice == given.text) {
      return true;
    }
    ++given.choice;
  }
  return given.text.empty() && value.is_optional;
}

bool read_pair(const Value& value, Given& given) {
  const std::string_view text = given.text;
  const size_t comma = text.find(',');
  if (!read_whole(text.substr(0, comma), given.whole)) {
    return false;
  }
  given.second = given.whole;
  return (comma == std::string_view::npos || read_whole(text.substr(comma + 1), given.second)) &&
         admits(value, static_cast<double>(given.whole)) && admits(value, static_cast<double>(given.second));
}

bool read(const Value& value, Given& given) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return given.text.empty();
    case Value::Kind::kChoice:
      return read_choice(value, given);
    case Value::Kind::kWhole:
      return read_whole(given.text, given.whole) && admits(value, static_cast<double>(given.whole));
    case Value::Kind::kPair:
      return read_pair(value, given);
    case Value::Kind::kReal:
      return read_whole(given.text, given.real) && admits(value, given.real);
  }
  return false;
}

}  // namespace

Result<Given> read_value(const Word& word, std::string_view text) {
  Given given{.text = std::string(text)};
  if (!read(word.value, given)) {
    return invalid_argument("`{}` expects {}, got `{}`", word.name, expected(word.value), text);
  }
  return given;
}

std::vector<std::string_view> choices(const Value& value) {
  std::vector<std::string_view> words;
  std::string_view rest = value.form;
  for (size_t bar = 0; bar != std::string_view::npos;) {
    bar = rest.find('|');
    words.push_back(rest.substr(0, bar));
    rest.remove_prefix(bar == std::string_view::npos ? rest.size() : bar + 1);
  }
  return words;
}

std::string form_of(const Word& word) {
  if (word.value.kind == Value::Kind::kNone) {
    return word.name;
  }
  return fmt::format(fmt::runtime(word.value.is_optional ? "{}[={}]" : "{}={}"), word.name, word.value.form);
}

}  // namespace flashlift::problem
