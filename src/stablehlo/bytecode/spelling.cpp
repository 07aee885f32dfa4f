#include "stablehlo/bytecode/spelling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace flashlift::stablehlo::bytecode {
namespace {

// Writes "[b, 0, 1, f]", the dimension at each position.
std::string places(std::initializer_list<std::pair<char, int64_t>> named, const std::vector<int64_t>& spatial) {
  std::vector<std::string> words(named.size() + spatial.size());
  bool fits = true;
  const auto put = [&](int64_t at, std::string word) {
    fits = fits && at >= 0 && at < static_cast<int64_t>(words.size()) && words[static_cast<size_t>(at)].empty();
    if (fits) {
      words[static_cast<size_t>(at)] = std::move(word);
    }
  };
  for (const auto& [letter, at] : named) {
    put(at, std::string(1, letter));
  }
  for (size_t i = 0; i < spatial.size(); ++i) {
    put(spatial[i], std::to_string(i));
  }
  return fits ? fmt::format("[{}]", fmt::join(words, ", ")) : std::string();
}

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  return text;
}

// Splits at commas outside of brackets and strings.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  bool in_string = false;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '<' || c == '[' || c == '(' || c == '{') {
      ++depth;
    } else if (c == ']' || c == ')' || c == '}' || (c == '>' && (i == 0 || text[i - 1] != '-'))) {
      --depth;
    } else if (c == ',' && depth == 0) {
      parts.push_back(trim(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  if (const std::string_view last = trim(text.substr(std::min(begin, text.size()))); !last.empty() || !parts.empty()) {
    parts.push_back(last);
  }
  return parts;
}

// Reads "[b, 0, 1, f]". Letters are dimensions that are not spatial.
bool read_places(std::string_view text, std::initializer_list<std::pair<char, int64_t*>> named,
                 std::vector<int64_t>& spatial) {
  if (!text.starts_with('[') || !text.ends_with(']')) {
    return false;
  }
  const std::vector<std::string_view> words = split(text.substr(1, text.size() - 2));
  if (words.size() < named.size()) {
    return false;
  }
  spatial.assign(words.size() - named.size(), -1);
  size_t found = 0;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string_view word = words[at];
    for (const auto& [letter, place] : named) {
      if (word == std::string_view(&letter, 1)) {
        *place = static_cast<int64_t>(at);
        ++found;
      }
    }
    if (const auto index = parse_number(word); index && *index >= 0 && *index < static_cast<int64_t>(spatial.size())) {
      spatial[static_cast<size_t>(*index)] = static_cast<int64_t>(at);
      ++found;
    }
  }
  return found == words.size() && std::find(spatial.begin(), spatial.end(), -1) == spatial.end();
}

}  // namespace

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<std::vector<int64_t>> parse_list(std::string_view text) {
  std::vector<int64_t> list;
  if (text.empty()) {
    return list;
  }
  if (!text.starts_with('[') || !text.ends_with(']')) {
    return std::nullopt;
  }
  for (const std::string_view word : split(text.substr(1, text.size() - 2))) {
    const std::optional<int64_t> number = parse_number(word);
    if (!number) {
      return std::nullopt;
    }
    list.push_back(*number);
  }
  return list;
}

std::optional<Fields> parse_fields(std::string_view text, std::string_view mnemonic) {
  if (!text.starts_with(mnemonic)) {
    return std::nullopt;
  }
  text.remove_prefix(mnemonic.size());
  if (!text.starts_with('<') || !text.ends_with('>')) {
    return std::nullopt;
  }
  Fields fields;
  for (const std::string_view part : split(text.substr(1, text.size() - 2))) {
    const size_t equal = part.find('=');
    if (equal == std::string_view::npos) {
      return std::nullopt;
    }
    fields.emplace_back(trim(part.substr(0, equal)), trim(part.substr(equal + 1)));
  }
  return fields;
}

std::string_view find_field(const Fields& fields, std::string_view name) {
  for (const auto& [field, value] : fields) {
    if (field == name) {
      return value;
    }
  }
  return {};
}

std::optional<ConvDims> parse_conv(std::string_view text) {
  if (!text.starts_with("conv<") || !text.ends_with('>')) {
    return std::nullopt;
  }
  text = text.substr(5, text.size() - 6);
  const size_t times = text.find("]x[");
  const size_t arrow = text.find("]->[");
  if (times == std::string_view::npos || arrow == std::string_view::npos || arrow < times) {
    return std::nullopt;
  }
  ConvDims dims;
  const bool fits = read_places(text.substr(0, times + 1), {{'b', &dims.input_batch}, {'f', &dims.input_feature}},
                                dims.input_spatial) &&
                    read_places(text.substr(times + 2, arrow - times - 1),
                                {{'i', &dims.kernel_input}, {'o', &dims.kernel_output}}, dims.kernel_spatial) &&
                    read_places(text.substr(arrow + 3), {{'b', &dims.output_batch}, {'f', &dims.output_feature}},
                                dims.output_spatial);
  return fits ? std::optional(dims) : std::nullopt;
}

std::optional<ScatterDims> parse_scatter(std::string_view text) {
  const std::optional<Fields> fields = parse_fields(text, "scatter");
  if (!fields) {
    return std::nullopt;
  }
  ScatterDims dims;
  bool fits = true;
  const auto read = [&](std::string_view name, std::vector<int64_t>& list) {
    const auto found = parse_list(find_field(*fields, name));
    fits = fits && found;
    list = found.value_or(std::vector<int64_t>());
  };
  read("update_window_dims", dims.update_window);
  read("inserted_window_dims", dims.inserted_window);
  read("input_batching_dims", dims.input_batching);
  read("scatter_indices_batching_dims", dims.indices_batching);
  read("scatter_dims_to_operand_dims", dims.scatter_to_operand);
  dims.index_vector_dim = parse_number(find_field(*fields, "index_vector_dim")).value_or(0);
  return fits ? std::optional(dims) : std::nullopt;
}

std::optional<DotAlgorithm> parse_algorithm(std::string_view text) {
  const std::optional<Fields> fields = parse_fields(text, "dot_algorithm");
  if (!fields) {
    return std::nullopt;
  }
  DotAlgorithm algorithm;
  algorithm.lhs = find_field(*fields, "lhs_precision_type");
  algorithm.rhs = find_field(*fields, "rhs_precision_type");
  algorithm.accumulation = find_field(*fields, "accumulation_type");
  const auto lhs = parse_number(find_field(*fields, "lhs_component_count"));
  const auto rhs = parse_number(find_field(*fields, "rhs_component_count"));
  const auto operations = parse_number(find_field(*fields, "num_primitive_operations"));
  if (!lhs || !rhs || !operations) {
    return std::nullopt;
  }
  algorithm.lhs_components = *lhs;
  algorithm.rhs_components = *rhs;
  algorithm.operations = *operations;
  algorithm.is_imprecise = find_field(*fields, "allow_imprecise_accumulation") == "true";
  return algorithm;
}

std::string spell_conv(const ConvDims& dims) {
  const std::string input = places({{'b', dims.input_batch}, {'f', dims.input_feature}}, dims.input_spatial);
  const std::string kernel = places({{'i', dims.kernel_input}, {'o', dims.kernel_output}}, dims.kernel_spatial);
  const std::string output = places({{'b', dims.output_batch}, {'f', dims.output_feature}}, dims.output_spatial);
  return input.empty() || kernel.empty() || output.empty() ? std::string()
                                                           : fmt::format("conv<{}x{}->{}>", input, kernel, output);
}

std::string spell_scatter(const ScatterDims& dims) {
  std::vector<std::string> fields;
  const auto add = [&](std::string_view name, const std::vector<int64_t>& list) {
    if (!list.empty()) {
      fields.push_back(fmt::format("{} = [{}]", name, fmt::join(list, ", ")));
    }
  };
  add("update_window_dims", dims.update_window);
  add("inserted_window_dims", dims.inserted_window);
  add("input_batching_dims", dims.input_batching);
  add("scatter_indices_batching_dims", dims.indices_batching);
  add("scatter_dims_to_operand_dims", dims.scatter_to_operand);
  if (dims.index_vector_dim != 0) {
    fields.push_back(fmt::format("index_vector_dim = {}", dims.index_vector_dim));
  }
  return fmt::format("scatter<{}>", fmt::join(fields, ", "));
}

std::string spell_algorithm(const DotAlgorithm& algorithm) {
  return fmt::format(
      "dot_algorithm<lhs_precision_type = {}, rhs_precision_type = {}, accumulation_type = {}, lhs_component_count = "
      "{}, rhs_component_count = {}, num_primitive_operations = {}, allow_imprecise_accumulation = {}>",
      algorithm.lhs, algorithm.rhs, algorithm.accumulation, algorithm.lhs_components, algorithm.rhs_components,
      algorithm.operations, algorithm.is_imprecise);
}

}  // namespace flashlift::stablehlo::bytecode
