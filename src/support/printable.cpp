#include "support/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlift {
namespace {

// The length of the valid UTF-8 sequence at the start of the text, or 0 if there is none.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    // The range of the second byte excludes surrogates, numbers beyond Unicode, and overlong forms.
    const unsigned char low = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) {
      return 0;
    }
  }
  return length;
}

// Also control characters of two bytes, U+0080 to U+009F.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return first < 0x20 || first == 0x7f || (first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0);
}

std::string spelled_out(std::string_view text, std::string_view kept) {
  const std::string valid = to_utf8(text);
  std::string result;
  for (std::string_view rest = valid; !rest.empty();) {
    const std::string_view character = rest.substr(0, sequence_length(rest));
    if (is_control(character) && kept.find(character[0]) == std::string_view::npos) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(character.back()));
    } else {
      result += character;
    }
    rest.remove_prefix(character.size());
  }
  return result;
}

}  // namespace

std::string to_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    result += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);  // U+FFFD
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return result;
}

std::string printable(std::string_view text) { return spelled_out(text, "\n\t"); }

std::string printable_line(std::string_view text) { return spelled_out(text, ""); }

}  // namespace flashlift
