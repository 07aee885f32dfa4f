#include "stablehlo/reader/text_guard.h"

#include <charconv>
#include <optional>
#include <vector>

#include "stablehlo/reader/text_meter.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

constexpr std::string_view kHexConstant = "dense<\"0x";

// A constant "dense<"0x...">: tensor<...xi1>" found in a text.
struct BoolConstant {
  std::string_view digits;  // part of the text
  size_t begin = 0;         // position of "dense"
  size_t close = 0;         // position of the closing '>'
  std::vector<int64_t> shape;
  int64_t elements = 1;
};

std::optional<BoolConstant> read_bool_constant(std::string_view text, size_t begin) {
  BoolConstant constant;
  constant.begin = begin;
  const size_t digits = begin + kHexConstant.size();
  const size_t quote = text.find('"', digits);
  if (quote == std::string_view::npos) {
    return std::nullopt;
  }
  constant.digits = text.substr(digits, quote - digits);
  size_t at = quote + 1;
  const auto take = [&](std::string_view word) {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) {
      ++at;
    }
    const bool found = text.substr(at).starts_with(word);
    at += found ? word.size() : 0;
    return found;
  };
  constant.close = quote + 1;
  if (!take(">")) {
    return std::nullopt;
  }
  constant.close = at - 1;
  if (!take(":") || !(take("tensor<") || take("vector<"))) {
    return std::nullopt;
  }
  while (true) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), size);
    if (error != std::errc() || end == text.data() + text.size() || *end != 'x' || size < 0) {
      break;
    }
    if (__builtin_mul_overflow(constant.elements, size, &constant.elements)) {
      return std::nullopt;
    }
    constant.shape.push_back(size);
    at = static_cast<size_t>(end - text.data()) + 1;
  }
  if (!take("i1") || !(take(">") || take(","))) {
    return std::nullopt;
  }
  return constant;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  if (c >= 'A' && c <= 'F') {
    return c - 'A' + 10;
  }
  return -1;
}

// Element `i` of digits with one byte for each element; -1 if a character is not a digit.
int byte_element(std::string_view digits, size_t i) {
  const int high = hex_value(digits[2 * i]);
  const int low = hex_value(digits[2 * i + 1]);
  return high < 0 || low < 0 ? -1 : (high | low) != 0;
}

// Converts digits with one byte for each element to packed bits, the first element in the lowest bit. Empty if a
// character is not a digit.
std::string packed_digits(std::string_view digits, size_t elements) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string packed;
  packed.reserve((elements + 7) / 8 * 2);
  for (size_t base = 0; base < elements; base += 8) {
    int byte = 0;
    for (size_t bit = 0; bit < 8 && base + bit < elements; ++bit) {
      const int element = byte_element(digits, base + bit);
      if (element < 0) {
        return {};
      }
      byte |= element << bit;
    }
    packed += kHex[byte >> 4];
    packed += kHex[byte & 15];
  }
  return packed;
}

void append_list(std::string& out, const BoolConstant& constant, size_t dim, size_t& element) {
  if (dim == constant.shape.size()) {
    const int byte =
        (hex_value(constant.digits[element / 8 * 2]) << 4) | hex_value(constant.digits[element / 8 * 2 + 1]);
    out += (byte >> (element % 8)) & 1 ? "true" : "false";
    ++element;
    return;
  }
  out += '[';
  for (int64_t i = 0; i < constant.shape[dim]; ++i) {
    out += i == 0 ? "" : ", ";
    append_list(out, constant, dim + 1, element);
  }
  out += ']';
}

}  // namespace

Status check_module_text(std::string_view text, std::string_view name) {
  // The magic number of bytecode is "MLïR".
  if (text.starts_with("ML\xefR")) {
    return unsupported(
        "{}: this is MLIR bytecode, where text is expected; read_module() takes both. As text: in JAX, "
        "jax.jit(f).lower(...).as_text(); elsewhere, stablehlo-translate --deserialize",
        name);
  }
  if (text.size() > kMaxModuleText) {
    return unsupported(
        "{}: the module's text has {} bytes, more than the {} that can be read; give large constants "
        "as arguments instead",
        name, text.size(), kMaxModuleText);
  }
  // MLIR reads an empty text as an empty module. This would hide that the export before it failed.
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return invalid_argument("{}: the text is empty; expected a StableHLO module", name);
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return invalid_argument("{}: byte {} is zero, so this is not text; expected a StableHLO module as text", name, nul);
  }
  return measure_text(text, name);
}

bool pack_bool_constants(std::string_view text, std::string& storage) {
  bool copied = false;
  for (size_t at = text.find(kHexConstant); at != std::string_view::npos; at = text.find(kHexConstant, at + 1)) {
    const std::optional<BoolConstant> constant = read_bool_constant(text, at);
    if (!constant || constant->elements == 0) {
      continue;
    }
    const auto elements = static_cast<size_t>(constant->elements);
    std::string packed;
    // One byte is the value of all elements. MLIR 22 would take it for the bits of up to 8 elements, but prints
    // constants as small as these in decimal.
    if (constant->digits.size() == 2) {
      const int element = byte_element(constant->digits, 0);
      packed = element < 0 ? "" : element > 0 ? "FF" : "00";
    } else if (constant->digits.size() == 2 * elements) {
      packed = packed_digits(constant->digits, elements);
    }
    if (packed.empty() || packed == constant->digits) {
      continue;
    }
    if (!copied) {
      storage.assign(text);
      copied = true;
    }
    packed.insert(0, kHexConstant);
    packed += "\">";
    const size_t room = constant->close + 1 - constant->begin;
    packed.resize(room, ' ');
    storage.replace(constant->begin, room, packed);
  }
  return copied;
}

std::string spell_bool_constants(std::string text) {
  std::string out;
  size_t done = 0;
  const std::string_view view = text;
  for (size_t at = view.find(kHexConstant); at != std::string_view::npos; at = view.find(kHexConstant, at + 1)) {
    const std::optional<BoolConstant> constant = read_bool_constant(view, at);
    if (!constant || constant->digits.size() != 2 * ((static_cast<size_t>(constant->elements) + 7) / 8)) {
      continue;
    }
    out += view.substr(done, at - done);
    out += "dense<";
    size_t element = 0;
    append_list(out, *constant, 0, element);
    out += '>';
    done = constant->close + 1;
  }
  if (done == 0) {
    return text;
  }
  out += view.substr(done);
  return out;
}

}  // namespace flashlift::stablehlo
