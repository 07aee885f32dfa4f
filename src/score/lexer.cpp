#include "score/lexer.h"

#include <algorithm>

#include "support/error.h"

namespace flashlift::score {
namespace {

// std::isalpha is undefined for negative characters and depends on the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_word_start(c) || is_digit(c) || c == '.'; }

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && is_word_start(text[0]) && std::ranges::all_of(text, is_word);
}

void Lexer::skip_space() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++position_;
    } else if (text_.substr(position_, 2) == "//") {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else {
      return;
    }
  }
}

void Lexer::advance() {
  skip_space();
  token_ = {.kind = TokenKind::kEnd, .text = {}, .offset = position_};
  if (position_ == text_.size()) {
    return;
  }
  const size_t start = position_;
  const auto take = [&](auto&& accepts) {
    while (position_ < text_.size() && accepts(text_[position_])) {
      ++position_;
    }
  };
  const char c = text_[start];
  const bool signed_word = c == '-' && start + 1 < text_.size() && is_word_start(text_[start + 1]);  // -inf, -nan
  const bool number =
      is_digit(c) || c == '.' ||
      ((c == '-' || c == '+') && start + 1 < text_.size() && (is_digit(text_[start + 1]) || text_[start + 1] == '.'));
  if (number) {
    ++position_;
    take([&](char d) {
      const char before = text_[position_ - 1];
      return is_word(d) || ((d == '+' || d == '-') && (before == 'e' || before == 'E'));
    });
    token_.kind = TokenKind::kNumber;
  } else if (is_word_start(c) || signed_word) {
    ++position_;
    take(is_word);
    token_.kind = signed_word ? TokenKind::kNumber : TokenKind::kWord;
  } else if (c == '%') {
    ++position_;
    take(is_word);
    token_.kind = TokenKind::kValueName;
    token_.text = text_.substr(start + 1, position_ - start - 1);
    return;
  } else {
    ++position_;
    token_.kind = TokenKind::kPunctuation;
  }
  token_.text = text_.substr(start, position_ - start);
}

bool Lexer::accept(std::string_view text) {
  if (token_.kind == TokenKind::kEnd || token_.kind == TokenKind::kValueName || token_.text != text) {
    return false;
  }
  advance();
  return true;
}

Status Lexer::expect(std::string_view text) {
  if (accept(text)) {
    return {};
  }
  return error_expected(fmt::format("`{}`", text));
}

Error Lexer::error_expected(std::string_view expected) const {
  std::string got = "the end of the text";
  if (token_.kind == TokenKind::kValueName) {
    got = fmt::format("`%{}`", token_.text);
  } else if (token_.kind != TokenKind::kEnd) {
    got = fmt::format("`{}`", token_.text.substr(0, 40));
  }
  return error_at(token_.offset, fmt::format("expected {}, got {}", expected, got));
}

Error Lexer::error_at(size_t offset, std::string_view message) const {
  const std::string_view before = text_.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return invalid_argument("line {}, column {}: {}", line, offset - line_start + 1, message);
}

}  // namespace flashlift::score
