#include "stablehlo/reader/text_meter.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
// Characters of a word, or of a name after #, !, %, @ or ^.
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '$' || c == '.'; }

struct Token {
  enum class Kind { kString, kWord, kNumber, kAlias, kName, kArrow, kPunctuation } kind = Kind::kPunctuation;
  std::string_view text;
  size_t begin = 0;
};

// Splits the text into MLIR's tokens, as precisely as the limits need. No token ends later than MLIR's would.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) {}

  std::optional<Token> next() {
    skip_space_and_comments();
    if (at_ == text_.size()) {
      return std::nullopt;
    }
    const size_t begin = at_;
    const Token::Kind kind = take();
    return Token{kind, text_.substr(begin, at_ - begin), begin};
  }

  // The first character after the last token that is neither space nor comment.
  char peek() {
    skip_space_and_comments();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

 private:
  void skip_space_and_comments() {
    while (at_ < text_.size()) {
      if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (is_space(text_[at_])) {
        ++at_;
      } else {
        return;
      }
    }
  }

  Token::Kind take() {
    const char c = text_[at_++];
    if (c == '"') {
      skip_string();
      return Token::Kind::kString;
    }
    if (is_letter(c)) {
      skip_while(is_word);
      return Token::Kind::kWord;
    }
    if (is_digit(c)) {
      skip_number();
      return Token::Kind::kNumber;
    }
    if (c == '#' || c == '!' || c == '%' || c == '@' || c == '^') {
      skip_while([](char d) { return is_word(d) || d == '-'; });
      return c == '#' || c == '!' ? Token::Kind::kAlias : Token::Kind::kName;
    }
    if (c == '-' && at_ < text_.size() && text_[at_] == '>') {
      ++at_;
      return Token::Kind::kArrow;
    }
    return Token::Kind::kPunctuation;
  }

  void skip_string() {
    while (at_ < text_.size()) {
      at_ = std::min(text_.find_first_of("\"\\\n", at_), text_.size());
      if (at_ == text_.size()) {
        return;
      }
      if (text_[at_] != '\\') {
        ++at_;
        return;
      }
      at_ = std::min(at_ + 2, text_.size());  // a backslash and the escaped character
    }
  }

  // 12, 0xF, 1.5e-3. In the dimensions 4x8xf32, 4 is a number and x8xf32 a word.
  void skip_number() {
    if (text_[at_ - 1] == '0' && text_.substr(at_, 1) == "x") {
      ++at_;
      skip_while([](char d) { return is_digit(d) || (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F'); });
      return;
    }
    skip_while([](char d) { return is_digit(d) || d == '.'; });
    const std::string_view rest = text_.substr(at_, 3);
    const bool has_sign = rest.size() > 1 && (rest[1] == '-' || rest[1] == '+');
    if ((rest.starts_with('e') || rest.starts_with('E')) && rest.size() > (has_sign ? 2U : 1U) &&
        is_digit(rest[has_sign ? 2 : 1])) {
      at_ += has_sign ? 2 : 1;
      skip_while(is_digit);
    }
  }

  template <typename Accepts>
  void skip_while(const Accepts& accepts) {
    while (at_ < text_.size() && accepts(text_[at_])) {
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

// MLIR's parser recurses at brackets and at each of several successive minus signs. '<' and '>' may also be
// comparisons: the other brackets therefore also close any '<' that was opened inside them.
class Nesting {
 public:
  void step(const Token& token, char next) {
    const char c = token.kind == Token::Kind::kPunctuation ? token.text.front() : '\0';
    minus_ = c == '-' ? minus_ + 1 : 0;
    switch (c) {
      case '(':
      case '[':
      case '{':
        outer_.push_back(angles_);
        angles_ = 0;
        ++depth_;
        break;
      case ')':
      case ']':
      case '}':
        depth_ -= angles_ + (outer_.empty() ? 0 : 1);
        angles_ = outer_.empty() ? 0 : outer_.back();
        if (!outer_.empty()) {
          outer_.pop_back();
        }
        break;
      case '<':
        if (next != '=') {
          ++angles_;
          ++depth_;
        }
        break;
      case '>':
        if (next != '=' && angles_ > 0) {
          --angles_;
          --depth_;
        }
        break;
      default:
        break;
    }
  }

  int depth() const { return depth_; }
  bool is_too_deep() const { return depth_ > kMaxNesting || minus_ > kMaxNesting; }

 private:
  std::vector<int> outer_;  // for each open bracket, the number of open '<' around it
  int angles_ = 0;          // the number of open '<' inside the innermost bracket
  int depth_ = 0;
  int minus_ = 0;
};

size_t saturating_sum(size_t a, size_t b) { return std::min(a + b, kMaxAllAliasText + 1); }

// Measures aliases after expansion. Locations are always printed as aliases, so that only their nesting counts.
class Aliases {
 public:
  // `next`: the first character after the token. Returns the error, if there is one.
  std::optional<std::string> step(const Token& token, char next, int depth) {
    if (is_definition(token, next, depth)) {
      define();
      name_ = std::string(token.text);
      now_ = {};
      wants_value_ = true;
    } else if (!name_.empty() && depth == 0 && starts_new_statement(token)) {
      define();
    }
    now_.text = saturating_sum(now_.text, token.text.size() + 1);
    now_.nesting = std::max(now_.nesting, depth);
    if (depth < location_depth_) {
      location_depth_ = kNoLocation;
    }
    if (token.text == "loc" && next == '(' && location_depth_ == kNoLocation) {
      location_depth_ = depth + 1;
    }
    if (token.kind == Token::Kind::kAlias) {
      use(token, depth);
    }
    return fault_;
  }

 private:
  static constexpr int kNoLocation = -1;

  struct Extent {
    size_t text = 0;
    int nesting = 0;
  };

  static bool is_definition(const Token& token, char next, int depth) {
    return token.kind == Token::Kind::kAlias && depth == 0 && next == '=';
  }

  // Whether a token starts a new statement rather than continuing a definition's value, as in `#a = dense<1> :
  // tensor<f32>`. The tokens before it determine this.
  bool starts_new_statement(const Token& token) {
    const bool wanted = wants_value_;
    const bool is_punctuation = token.kind == Token::Kind::kPunctuation || token.kind == Token::Kind::kArrow;
    const char c = is_punctuation ? token.text.back() : '\0';
    const bool closes = c == ')' || c == ']' || c == '}' || (c == '>' && token.kind != Token::Kind::kArrow);
    wants_value_ = is_punctuation && !closes;
    return !wanted && !is_punctuation;
  }

  void define() {
    if (!name_.empty()) {
      known_[name_] = now_;
      name_.clear();
    }
  }

  void use(const Token& token, int depth) {
    const auto found = known_.find(std::string(token.text));
    if (found == known_.end() || token.text == name_) {
      return;
    }
    const Extent& used = found->second;
    const bool in_location = location_depth_ != kNoLocation;
    if (depth + used.nesting > kMaxAliasNesting) {
      fault_ = fmt::format("brackets nested more than {} deep once aliases are written out", kMaxAliasNesting);
    }
    now_.nesting = std::max(now_.nesting, depth + used.nesting);
    now_.text = saturating_sum(now_.text, used.text);
    if (in_location) {
      return;
    }
    all_ = saturating_sum(all_, used.text);
    if (now_.text > kMaxAliasText && !name_.empty()) {
      fault_ = fmt::format("an alias of more than {} characters once the aliases in it are written out", kMaxAliasText);
    } else if (used.text > kMaxAliasText || all_ > kMaxAllAliasText) {
      fault_ = fmt::format("more than {} characters once aliases are written out", kMaxAllAliasText);
    }
  }

  std::unordered_map<std::string, Extent> known_;
  std::string name_;  // the alias being defined; empty outside definitions
  Extent now_;
  size_t all_ = 0;
  bool wants_value_ = false;
  int location_depth_ = kNoLocation;  // the bracket depth of the loc(...) that is open
  std::optional<std::string> fault_;
};

// Whether a type, with or without dimensions before it, is an integer with too many bits: i99999, x8xui99999.
bool is_wide_integer(std::string_view word) {
  const size_t digits = word.find_last_not_of("0123456789") + 1;
  if (digits == word.size() || digits == 0 || word[digits - 1] != 'i') {
    return false;
  }
  std::string_view before = word.substr(0, digits - 1);
  if (before.ends_with('s') || before.ends_with('u')) {
    before.remove_suffix(1);
  }
  if (!before.empty() && !(before.ends_with('x') && (before.size() == 1 || before.starts_with('x')))) {
    return false;
  }
  int bits = 0;
  const auto [end, error] = std::from_chars(word.data() + digits, word.data() + word.size(), bits);
  return error != std::errc() || bits > kMaxIntegerBits;
}

// Measures the text of each affine map and set.
class AffineText {
 public:
  bool is_too_long(const Token& token, char next, int depth) {
    if (begin_ && depth < depth_) {
      begin_.reset();
    }
    if (!begin_ && next == '<' && (token.text == "affine_map" || token.text == "affine_set")) {
      begin_ = token.begin;
      depth_ = depth + 1;
    }
    return begin_ && token.begin + token.text.size() - *begin_ > kMaxAffineText;
  }

 private:
  std::optional<size_t> begin_;
  int depth_ = 0;  // the bracket depth inside it
};

Error error_at(std::string_view text, std::string_view name, size_t offset, std::string_view message) {
  size_t line = 1;
  size_t column = 1;
  for (const char c : text.substr(0, offset)) {
    column = c == '\n' ? 1 : column + 1;
    line += c == '\n' ? 1 : 0;
  }
  return unsupported("{}:{}:{}: {}", name, line, column, message);
}

}  // namespace

Status measure_text(std::string_view text, std::string_view name) {
  Tokens tokens(text);
  Nesting nesting;
  Aliases aliases;
  AffineText affine;
  while (const std::optional<Token> token = tokens.next()) {
    const char next = tokens.peek();
    nesting.step(*token, next);
    const auto fault = [&](std::string_view message) { return error_at(text, name, token->begin, message); };
    if (nesting.is_too_deep()) {
      return fault(fmt::format("brackets nested more than {} deep", kMaxNesting));
    }
    if (const std::optional<std::string> message = aliases.step(*token, next, nesting.depth())) {
      return fault(*message);
    }
    if (affine.is_too_long(*token, next, nesting.depth())) {
      return fault(fmt::format("an affine map or set of more than {} characters", kMaxAffineText));
    }
    if (token->kind == Token::Kind::kNumber && token->text.size() > kMaxNumberText) {
      return fault(fmt::format("a number of more than {} characters", kMaxNumberText));
    }
    if (token->kind == Token::Kind::kWord && token->text.size() > kMaxDimensionsText && token->text.starts_with('x')) {
      return fault(
          fmt::format("more than 64 dimensions, or their sizes in more than {} characters", kMaxDimensionsText));
    }
    if (token->kind == Token::Kind::kWord && next != '=' && is_wide_integer(token->text)) {
      return fault(fmt::format("an integer type of more than {} bits", kMaxIntegerBits));
    }
  }
  return {};
}

}  // namespace flashlift::stablehlo
