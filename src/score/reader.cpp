#include <charconv>
#include <limits>
#include <string>
#include <unordered_map>

#include "score/lexer.h"
#include "score/sizes.h"
#include "score/verify.h"
#include "support/counted.h"
#include "support/error.h"
#include "support/lazy.h"

namespace flashlift {
namespace {

using score::Lexer;
using score::TokenKind;

const std::unordered_map<std::string_view, Op>& ops_by_name() {
  using Map = std::unordered_map<std::string_view, Op>;
  static constinit Lazy<const Map> table;
  return table.get([] {
    Map made;
    for (int i = 0; i < kOpCount; ++i) {
      made.emplace(info(static_cast<Op>(i)).name, static_cast<Op>(i));
    }
    return made;
  });
}

int64_t float_bits(float value) { return std::bit_cast<uint32_t>(value); }

template <typename T>
bool parse_whole(std::string_view text, T& value, int base = 10) {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);
  }
  std::from_chars_result result{};
  if constexpr (std::is_floating_point_v<T>) {
    result = std::from_chars(text.data(), text.data() + text.size(), value);
  } else {
    result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  }
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

class Reader {
 public:
  explicit Reader(std::string_view text) : lexer_(text) {}

  Result<Program> read() {
    FLASHLIFT_RETURN_IF_ERROR(read_signature());
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect("{"));
    skip_line_ends();
    while (lexer_.token().kind == TokenKind::kValueName) {
      FLASHLIFT_RETURN_IF_ERROR(read_statement());
      skip_line_ends();
    }
    if (!lexer_.accept("return")) {
      return lexer_.error_expected("`%name = op ...` or `return`");
    }
    FLASHLIFT_ASSIGN_OR_RETURN(program_.result, read_operand());
    skip_line_ends();
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect("}"));
    if (lexer_.token().kind != TokenKind::kEnd) {
      return lexer_.error_expected("the end of the program");
    }
    FLASHLIFT_RETURN_IF_ERROR(score::verify(program_));
    return std::move(program_);
  }

 private:
  // `;` is a newline, of which any number may come between statements.
  void skip_line_ends() {
    while (lexer_.accept(";")) {
    }
  }

  Status read_signature() {
    if (lexer_.accept("score_mod")) {
      program_.kind = ProgramKind::kScoreMod;
    } else if (lexer_.accept("mask_mod")) {
      program_.kind = ProgramKind::kMaskMod;
    } else {
      return lexer_.error_expected("`score_mod` or `mask_mod`");
    }
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect("("));
    while (!lexer_.accept(")")) {
      if (!program_.captures.empty()) {
        FLASHLIFT_RETURN_IF_ERROR(lexer_.expect(","));
      }
      FLASHLIFT_RETURN_IF_ERROR(read_capture());
    }
    return {};
  }

  Status read_capture() {
    if (lexer_.token().kind != TokenKind::kWord) {
      return lexer_.error_expected("the name of a captured tensor");
    }
    if (program_.captures.size() == kMaxCaptures) {
      return lexer_.error_at(lexer_.token().offset, fmt::format("more than {} captured tensors", kMaxCaptures));
    }
    Capture capture{.name = std::string(lexer_.token().text), .dtype = DType::kF32, .shape = {}};
    lexer_.advance();
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect(":"));
    const auto dtype = parse_dtype(lexer_.token().text);
    if (!dtype) {
      return lexer_.error_expected("a dtype (bool, i8, u8, i16, i32, u32, i64, f16, bf16, f32, f64)");
    }
    capture.dtype = *dtype;
    lexer_.advance();
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect("["));
    while (!lexer_.accept("]")) {
      if (!capture.shape.empty()) {
        FLASHLIFT_RETURN_IF_ERROR(lexer_.expect(","));
      }
      FLASHLIFT_ASSIGN_OR_RETURN(const int64_t size, read_size());
      capture.shape.push_back(size);
    }
    program_.captures.push_back(std::move(capture));
    return {};
  }

  // 64, ?, q_len or 1|batch.
  Result<int64_t> read_size() {
    int64_t size = 0;
    if (parse_whole(lexer_.token().text, size) && size >= 0) {
      lexer_.advance();
      if (size != 1 || !lexer_.accept("|")) {
        return size;
      }
      const auto named = score::parse_size_name(lexer_.token().text);
      if (!named || *named == kAnySize) {
        return lexer_.error_expected("`batch`, `heads`, `q_len`, `kv_len` or `n`");
      }
      lexer_.advance();
      return or_one(*named);
    }
    const auto named = score::parse_size_name(lexer_.token().text);
    if (!named) {
      return lexer_.error_expected("a size, `?`, `batch`, `heads`, `q_len`, `kv_len` or `n`");
    }
    lexer_.advance();
    return *named;
  }

  Status read_statement() {
    const size_t place = lexer_.token().offset;
    const std::string name(lexer_.token().text);
    if (names_.contains(name)) {
      return lexer_.error_at(place, fmt::format("`%{}` is defined twice", name));
    }
    lexer_.advance();
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect("="));
    const auto op = ops_by_name().find(lexer_.token().text);
    if (op == ops_by_name().end() || info(op->second).arity == 0) {
      return lexer_.error_expected("an operation (`flashlift info --ops` lists them)");
    }
    lexer_.advance();
    Node node{.op = op->second, .type = Type::kF32, .operands = {}};
    if (reads_capture(node.op)) {
      FLASHLIFT_RETURN_IF_ERROR(read_load(node));
    } else {
      for (int i = 0; i < info(node.op).arity; ++i) {
        if (i > 0) {
          FLASHLIFT_RETURN_IF_ERROR(lexer_.expect(","));
        }
        FLASHLIFT_ASSIGN_OR_RETURN(const ValueId operand, read_operand());
        node.operands.push_back(operand);
      }
    }
    std::vector<Type> types;
    for (const ValueId operand : node.operands) {
      types.push_back(program_.nodes[operand].type);
    }
    const Result<Type> type = score::result_type(node.op, types, node.type);
    if (!type.ok()) {
      return lexer_.error_at(place, type.error().message);
    }
    node.type = *type;
    FLASHLIFT_ASSIGN_OR_RETURN(const ValueId id, add(std::move(node)));
    names_.emplace(name, id);
    return {};
  }

  Status read_load(Node& node) {
    const std::string_view name = lexer_.token().text;
    while (node.payload < static_cast<int64_t>(program_.captures.size()) &&
           program_.captures[node.payload].name != name) {
      ++node.payload;
    }
    if (node.payload == static_cast<int64_t>(program_.captures.size())) {
      return lexer_.error_expected("the name of a captured tensor of this program");
    }
    const Capture& capture = program_.captures[node.payload];
    node.type = scalar_type(capture.dtype);
    const size_t place = lexer_.token().offset;
    lexer_.advance();
    FLASHLIFT_RETURN_IF_ERROR(lexer_.expect("["));
    while (!lexer_.accept("]")) {
      if (!node.operands.empty()) {
        FLASHLIFT_RETURN_IF_ERROR(lexer_.expect(","));
      }
      FLASHLIFT_ASSIGN_OR_RETURN(const ValueId index, read_operand());
      node.operands.push_back(index);
    }
    if (node.operands.size() != capture.shape.size()) {
      return lexer_.error_at(place, fmt::format("captured tensor `{}` has {}, but is read with {}", name,
                                                counted(capture.shape.size(), "dimension"),
                                                counted(node.operands.size(), "index", "indices")));
    }
    return {};
  }

  Result<ValueId> read_operand() {
    const score::Token token = lexer_.token();
    if (token.kind == TokenKind::kValueName) {
      const auto found = names_.find(std::string(token.text));
      if (found == names_.end()) {
        return lexer_.error_expected("a value defined before");
      }
      lexer_.advance();
      return found->second;
    }
    if (token.kind == TokenKind::kWord) {
      const auto op = ops_by_name().find(token.text);
      if (op != ops_by_name().end() && info(op->second).arity == 0 && op->second != Op::k_constant) {
        lexer_.advance();
        const Type type = op->second == Op::k_score ? Type::kF32 : Type::kI32;
        return add({.op = op->second, .type = type, .operands = {}});
      }
    }
    return read_constant();
  }

  Result<ValueId> read_constant() {
    const std::string_view text = lexer_.token().text;
    const size_t place = lexer_.token().offset;
    Node node{.op = Op::k_constant, .type = Type::kI32, .operands = {}};
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    float value = 0;
    uint32_t bits = 0;
    if (text == "true" || text == "false") {
      node.type = Type::kI1;
      node.payload = text == "true" ? 1 : 0;
    } else if (text == "inf" || text == "-inf") {
      node.type = Type::kF32;
      node.payload = float_bits(text == "inf" ? kInfinity : -kInfinity);
    } else if (text == "nan") {
      node.type = Type::kF32;
      node.payload = 0x7fc00000;
    } else if (text.starts_with("0x") && parse_whole(text.substr(2), bits, 16)) {
      lexer_.advance();
      FLASHLIFT_RETURN_IF_ERROR(lexer_.expect(":"));
      if (!lexer_.accept("f32")) {
        return lexer_.error_expected("`f32` after the bits of a float");
      }
      return add({.op = Op::k_constant, .type = Type::kF32, .operands = {}, .payload = bits});
    } else if (lexer_.token().kind == TokenKind::kNumber && parse_whole(text, node.payload)) {
      return read_integer(node, text, place);
    } else if (lexer_.token().kind == TokenKind::kNumber && parse_whole(text, value)) {
      node.type = Type::kF32;
      node.payload = float_bits(value);
    } else {
      return lexer_.error_expected("an operand: %name, score, b, h, q, kv, q_len, kv_len or a constant in range");
    }
    lexer_.advance();
    if (lexer_.accept(":") && !lexer_.accept(to_string(node.type))) {
      return lexer_.error_expected(fmt::format("`{}`, the type of `{}`", to_string(node.type), text));
    }
    return add(std::move(node));
  }

  Result<ValueId> read_integer(Node node, std::string_view text, size_t place) {
    lexer_.advance();
    if (lexer_.accept(":") && !lexer_.accept("i32")) {
      float value = 0;
      if (lexer_.accept("i64")) {
        node.type = Type::kI64;
      } else if (parse_whole(text, value) && lexer_.accept("f32")) {
        node.type = Type::kF32;
        node.payload = float_bits(value);
      } else {
        return lexer_.error_expected("i32, i64 or f32, the suffixes of an integer");
      }
    } else if (node.payload != static_cast<int32_t>(node.payload)) {
      return lexer_.error_at(place, fmt::format("{} does not fit i32; write {}:i64", node.payload, node.payload));
    }
    return add(std::move(node));
  }

  // Leaves are shared, so that repetition does not enlarge a program.
  Result<ValueId> add(Node node) {
    const ValueId id = static_cast<ValueId>(program_.nodes.size());
    if (info(node.op).arity == 0) {
      const auto key = fmt::format("{} {} {}", info(node.op).name, to_string(node.type), node.payload);
      const auto [it, is_new] = leaves_.emplace(key, id);
      if (!is_new) {
        return it->second;
      }
    }
    if (program_.nodes.size() == kMaxProgramNodes) {
      return lexer_.error_at(lexer_.token().offset,
                             fmt::format("a program has at most {} nodes, and this one has more", kMaxProgramNodes));
    }
    program_.nodes.push_back(std::move(node));
    return id;
  }

  Lexer lexer_;
  Program program_;
  std::unordered_map<std::string, ValueId> names_;
  std::unordered_map<std::string, ValueId> leaves_;
};

}  // namespace

Result<Program> parse_program(std::string_view text) {
  if (text.size() > kMaxProgramText) {
    return invalid_argument("a program's text has at most {} bytes, this one has {}", kMaxProgramText, text.size());
  }
  return Reader(text).read();
}

}  // namespace flashlift
