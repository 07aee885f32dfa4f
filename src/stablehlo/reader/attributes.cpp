#include "stablehlo/reader/attributes.h"

#include <algorithm>
#include <charconv>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace flashlift::stablehlo {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// One field of a dimension-number attribute: a list of integers, or one integer.
struct Field {
  std::string_view name;
  std::vector<int64_t>* list = nullptr;
  int64_t* number = nullptr;
};

// Reads "name<field = [1, 2], field = 3>" with the fields in any order.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}

  bool read(std::string_view mnemonic, std::span<const Field> fields) {
    if (word() != mnemonic || !take('<')) {
      return false;
    }
    while (!take('>')) {
      if (!read_field(fields)) {
        return false;
      }
      if (!take(',') && peek() != '>') {
        return false;
      }
    }
    return peek() == '\0';
  }

 private:
  bool read_field(std::span<const Field> fields) {
    const std::string_view name = word();
    if (!take('=')) {
      return false;
    }
    for (const Field& field : fields) {
      if (field.name == name) {
        return field.list ? read_list(*field.list) : integer(*field.number);
      }
    }
    return false;
  }

  bool read_list(std::vector<int64_t>& list) {
    list.clear();
    if (!take('[')) {
      return false;
    }
    while (!take(']')) {
      if (!integer(list.emplace_back())) {
        return false;
      }
      if (!take(',') && peek() != ']') {
        return false;
      }
    }
    return true;
  }

  void skip_space() {
    while (!rest_.empty() && is_space(rest_.front())) {
      rest_.remove_prefix(1);
    }
  }
  char peek() {
    skip_space();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    if (peek() != c) {
      return false;
    }
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view word() {
    skip_space();
    size_t size = 0;
    while (size < rest_.size() && is_word(rest_[size])) {
      ++size;
    }
    const std::string_view result = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return result;
  }
  bool integer(int64_t& value) {
    const std::string_view digits = word();
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
  }

  std::string_view rest_;
};

void append_list(std::string& text, std::string_view name, const std::vector<int64_t>& list) {
  if (list.empty()) {
    return;
  }
  fmt::format_to(std::back_inserter(text), "{}{} = [{}]", text.back() == '<' ? "" : ", ", name, fmt::join(list, ", "));
}

// Normalises white space: a run becomes one space; there is none beside brackets and before commas, and one after each
// comma. Removes comments and keeps strings. Returns nothing if a comment contains a bracket: MLIR counts brackets in
// comments, too, and would not find the end of the text without them.
std::optional<std::string> squeeze(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool space = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_space(c)) {
      space = true;
      continue;
    }
    if (text.substr(i).starts_with("//")) {
      const size_t end = std::min(text.find('\n', i), text.size());
      if (text.substr(i, end - i).find_first_of("<>[](){}") != std::string_view::npos) {
        return std::nullopt;
      }
      i = end;
      space = true;
      continue;
    }
    const char last = out.empty() ? '\0' : out.back();
    const bool tight =
        out.empty() || last == '<' || last == '[' || last == '(' || c == '>' || c == ']' || c == ')' || c == ',';
    if ((space && !tight) || last == ',') {
      out += ' ';
    }
    space = false;
    if (c == '"') {
      const size_t begin = i++;
      while (i < text.size() && text[i] != '"') {
        i += text[i] == '\\' ? 2 : 1;
      }
      out += text.substr(begin, i - begin + 1);
      continue;
    }
    out += c;
  }
  return out;
}

}  // namespace

std::optional<DotDims> parse_dot(std::string_view text) {
  DotDims dims;
  const Field fields[] = {{"lhs_batching_dimensions", &dims.lhs_batch},
                          {"rhs_batching_dimensions", &dims.rhs_batch},
                          {"lhs_contracting_dimensions", &dims.lhs_contract},
                          {"rhs_contracting_dimensions", &dims.rhs_contract}};
  return FieldReader(text).read("dot", fields) ? std::optional(dims) : std::nullopt;
}

std::string print_dot(const DotDims& dims) {
  std::string text = "dot<";
  append_list(text, "lhs_batching_dimensions", dims.lhs_batch);
  append_list(text, "rhs_batching_dimensions", dims.rhs_batch);
  append_list(text, "lhs_contracting_dimensions", dims.lhs_contract);
  append_list(text, "rhs_contracting_dimensions", dims.rhs_contract);
  return text + ">";
}

std::optional<GatherDims> parse_gather(std::string_view text) {
  GatherDims dims;
  const Field fields[] = {{"offset_dims", &dims.offset_dims},
                          {"collapsed_slice_dims", &dims.collapsed_slice_dims},
                          {"operand_batching_dims", &dims.operand_batching_dims},
                          {"start_indices_batching_dims", &dims.start_indices_batching_dims},
                          {"start_index_map", &dims.start_index_map},
                          {"index_vector_dim", nullptr, &dims.index_vector_dim}};
  return FieldReader(text).read("gather", fields) ? std::optional(dims) : std::nullopt;
}

std::string print_gather(const GatherDims& dims) {
  std::string text = "gather<";
  append_list(text, "offset_dims", dims.offset_dims);
  append_list(text, "collapsed_slice_dims", dims.collapsed_slice_dims);
  append_list(text, "operand_batching_dims", dims.operand_batching_dims);
  append_list(text, "start_indices_batching_dims", dims.start_indices_batching_dims);
  append_list(text, "start_index_map", dims.start_index_map);
  // StableHLO omits zero, too.
  if (dims.index_vector_dim != 0) {
    fmt::format_to(std::back_inserter(text), "{}index_vector_dim = {}", text.back() == '<' ? "" : ", ",
                   dims.index_vector_dim);
  }
  return text + ">";
}

std::optional<std::string> canonical_attribute(std::string_view text) {
  if (const std::optional<DotDims> dot = parse_dot(text)) {
    return print_dot(*dot);
  }
  if (const std::optional<GatherDims> gather = parse_gather(text)) {
    return print_gather(*gather);
  }
  std::optional<std::string> squeezed = squeeze(text);
  // StableHLO accepts two spellings of bounds. This keeps one of them.
  constexpr std::string_view kLongBounds = "type_extensions<bounds = [";
  if (squeezed && squeezed->starts_with(kLongBounds) && squeezed->ends_with("]>")) {
    return "bounds<" + squeezed->substr(kLongBounds.size(), squeezed->size() - kLongBounds.size() - 2) + ">";
  }
  return squeezed;
}

std::optional<std::string_view> parse_enum(std::string_view text, std::string_view mnemonic) {
  if (!text.starts_with(mnemonic) || text.size() < mnemonic.size() + 2) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(mnemonic.size());
  if (rest.front() != ' ' && rest.front() != '<') {
    return std::nullopt;
  }
  size_t begin = 0;
  while (begin < rest.size() && !is_word(rest[begin])) {
    ++begin;
  }
  size_t end = begin;
  while (end < rest.size() && is_word(rest[end])) {
    ++end;
  }
  return begin == end ? std::nullopt : std::optional(rest.substr(begin, end - begin));
}

}  // namespace flashlift::stablehlo
