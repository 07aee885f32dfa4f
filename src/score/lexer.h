// Tokens of the two text forms, with positions for error messages.
#pragma once

#include <string_view>

#include "flashlift/result.h"

namespace flashlift::score {

enum class TokenKind { kEnd, kWord, kValueName, kNumber, kPunctuation };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;  // a value name without its '%'
  size_t offset = 0;
};

// Whether a text is one word, as names are.
bool is_name(std::string_view text);

// Splits text into words ([A-Za-z_][A-Za-z0-9_.]*), value names (%12), numbers and single punctuation characters.
// Whitespace separates tokens, and `//` starts a comment up to the end of the line.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  const Token& token() const { return token_; }
  void advance();
  // Skips the token if it is this punctuation or word.
  bool accept(std::string_view text);
  Status expect(std::string_view text);

  // An error at the current token: "line 2, column 5: expected ..., got ...".
  Error error_expected(std::string_view expected) const;
  Error error_at(size_t offset, std::string_view message) const;

 private:
  void skip_space();

  std::string_view text_;
  size_t position_ = 0;
  Token token_;
};

}  // namespace flashlift::score
