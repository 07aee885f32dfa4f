#include "problem/word_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "problem/features.h"
#include "problem/options.h"
#include "problem/sizes.h"
#include "score/sizes.h"
#include "support/spelling.h"

namespace flashlift::problem {
namespace {

constexpr const char* kDTypes[] = {"f32", "bf16", "f16"};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    words.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return words;
}

WordText text_of(const Size& size) {
  WordText text{.group = "sizes", .name = size.name, .doc = size.doc, .without = size.without};
  text.forms.push_back(fmt::format("{}<N>", size.name));
  const std::string_view examples = size.examples;
  const size_t space = examples.find(' ');
  text.examples.emplace_back(examples.substr(0, space));
  if (size.first != nullptr) {
    text.forms.push_back(fmt::format("{}<N> {}<N>", size.first, size.second));
    text.examples.emplace_back(examples.substr(space + 1));
  }
  return text;
}

WordText text_of(const char* group, const Word& word) {
  WordText text{.group = group, .name = word.name, .forms = {form_of(word)}, .doc = word.doc, .without = word.without};
  const bool is_choice = word.value.kind == Value::Kind::kChoice;
  if (word.value.kind == Value::Kind::kNone || word.value.is_optional) {
    text.examples.emplace_back(word.name);
  }
  for (const std::string_view choice : is_choice ? choices(word.value) : std::vector<std::string_view>()) {
    text.examples.push_back(fmt::format("{}={}", word.name, choice));
  }
  for (const std::string& number : split(word.examples)) {
    text.examples.push_back(fmt::format("{}={}", word.name, number));
  }
  return text;
}

WordText text_of(const Feature& feature) {
  WordText text = text_of(feature.mask != nullptr ? "masks" : "scores", feature.word);
  for (const FeatureTensor& tensor : feature.tensors) {
    if (tensor.name == nullptr) {
      continue;
    }
    std::vector<std::string> sizes;
    for (const int64_t size : tensor.shape) {
      if (size != 0) {
        sizes.push_back(score::size_text(size));
      }
    }
    text.captures.push_back(fmt::format("{}: {}[{}]", tensor.name,
                                        tensor.dtype ? to_string(*tensor.dtype) : feature.word.value.form,
                                        fmt::join(sizes, ",")));
  }
  return text;
}

std::string list_as_json(const std::vector<std::string>& list) {
  return list.empty() ? "[]" : fmt::format("[\"{}\"]", fmt::join(list, "\", \""));
}

// Words of the tables that may have been meant, each with the given value.
std::vector<std::string> suggestions(std::string_view word) {
  constexpr std::pair<std::string_view, const char*> kOtherNames[] = {
      {"float32", "f32"}, {"float", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"}, {"half", "f16"}};
  for (const auto& [other, name] : kOtherNames) {
    if (word == other) {
      return {name};
    }
  }
  const size_t end = std::min(word.find('='), word.size());
  const size_t digits = std::min(word.find_first_of("0123456789"), word.size());
  std::vector<std::string_view> known(std::begin(kDTypes), std::end(kDTypes));
  std::string_view name = word;
  if (end < word.size() || digits == word.size()) {
    known.clear();
    name = word.substr(0, end);
    for (const Feature& feature : features()) {
      known.emplace_back(feature.word.name);
    }
    for (const Option& option : options()) {
      known.emplace_back(option.word.name);
    }
  }
  std::vector<std::string> meant;
  for (const std::string_view one : similar_words(name, known)) {
    meant.push_back(std::string(one) + std::string(word.substr(name.size())));
  }
  if (end == word.size() && digits < word.size() && meant.empty()) {
    known.clear();
    for (const Size& size : sizes()) {
      for (const char* each : {size.name, size.first, size.second}) {
        if (each != nullptr) {
          known.emplace_back(each);
        }
      }
    }
    for (const std::string_view one : similar_words(word.substr(0, digits), known)) {
      meant.push_back(std::string(one) + std::string(word.substr(digits)));
    }
  }
  return meant;
}

}  // namespace

std::vector<WordText> word_texts() {
  std::vector<WordText> texts;
  for (const Size& size : sizes()) {
    texts.push_back(text_of(size));
  }
  texts.push_back({.group = "sizes",
                   .name = "dtype",
                   .forms = {kDTypes[0], kDTypes[1], kDTypes[2]},
                   .examples = {kDTypes[0], kDTypes[1], kDTypes[2]},
                   .doc = "dtype of q, k, v",
                   .without = "`f32`"});
  for (const Feature& feature : features()) {
    texts.push_back(text_of(feature));
  }
  for (const Option& option : options()) {
    texts.push_back(text_of("options", option.word));
  }
  for (const char* program : {"score_mod", "mask_mod"}) {
    const std::string form = fmt::format("{}(...) {{...}}", program);
    texts.push_back({.group = "programs",
                     .name = program,
                     .forms = {form},
                     .examples = {form},
                     .doc = "the problem's own program; it comes after the features"});
  }
  std::ranges::stable_sort(texts, {}, [](const WordText& text) {
    constexpr std::string_view kGroups[] = {"sizes", "masks", "scores", "options", "programs"};
    return std::ranges::find(kGroups, text.group) - std::begin(kGroups);
  });
  return texts;
}

// The tables' texts contain no characters that JSON must escape.
std::string words_as_json() {
  std::string json;
  for (const WordText& text : word_texts()) {
    json += fmt::format(
        R"({}{{"name": "{}", "group": "{}", "forms": {}, "examples": {}, "meaning": "{}", "without": "{}", "captures": {}}})",
        json.empty() ? "[" : ",\n ", text.name, text.group, list_as_json(text.forms), list_as_json(text.examples),
        text.doc, text.without, list_as_json(text.captures));
  }
  return json + "]\n";
}

std::vector<std::string> dictionary() {
  std::vector<std::string> words = {"attn", "score_mod(", "mask_mod("};
  for (const Size& size : sizes()) {
    for (const char* name : {size.name, size.first, size.second}) {
      if (name != nullptr) {
        words.emplace_back(name);
      }
    }
  }
  const auto add = [&](const Word& word) {
    const bool has_value = word.value.kind != Value::Kind::kNone;
    if (!has_value || word.value.is_optional) {
      words.emplace_back(word.name);
    }
    if (word.value.kind == Value::Kind::kChoice) {
      for (const std::string_view choice : choices(word.value)) {
        words.push_back(fmt::format("{}={}", word.name, choice));
      }
    } else if (has_value) {
      words.push_back(fmt::format("{}=", word.name));
    }
  };
  for (const Feature& feature : features()) {
    add(feature.word);
  }
  for (const Option& option : options()) {
    add(option.word);
  }
  for (int dtype = 0; dtype <= static_cast<int>(DType::kF64); ++dtype) {
    words.emplace_back(to_string(static_cast<DType>(dtype)));
  }
  return words;
}

std::string unknown_word(std::string_view word) {
  std::string message = fmt::format("unknown word `{}` in a problem: ", word);
  if (const std::vector<std::string> meant = suggestions(word); !meant.empty()) {
    return message + did_you_mean(meant);
  }
  std::vector<std::string> forms;
  for (const WordText& text : word_texts()) {
    forms.insert(forms.end(), text.forms.begin(), text.forms.end());
  }
  return message + fmt::format("expected one of {}", fmt::join(forms, ", "));
}

}  // namespace flashlift::problem
