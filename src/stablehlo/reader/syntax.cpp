#include "stablehlo/reader/syntax.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/syntax_state.h"
#include "support/lazy.h"

namespace flashlift::stablehlo {

using mlir::failed;
using mlir::failure;
using mlir::ParseResult;
using mlir::success;

ParseResult SyntaxState::parse_enum(std::string_view name, std::string_view mnemonic) {
  llvm::StringRef keyword;
  if (parser.parseKeyword(&keyword)) {
    return failure();
  }
  add(name, text_attribute(std::string(mnemonic) + " " + keyword.str()));
  return success();
}

namespace {

ParseResult parse_operand_list(SyntaxState& state, bool comma_after_each) {
  mlir::OpAsmParser& parser = state.parser;
  while (true) {
    mlir::OpAsmParser::UnresolvedOperand operand;
    const mlir::OptionalParseResult parsed = parser.parseOptionalOperand(operand);
    if (!parsed.has_value()) {
      return success();
    }
    if (failed(*parsed)) {
      return failure();
    }
    state.operands.push_back(operand);
    if (comma_after_each) {
      if (parser.parseComma()) {
        return failure();
      }
    } else if (failed(parser.parseOptionalComma())) {
      return success();
    }
  }
}

ParseResult parse_attribute(SyntaxState& state, std::string_view name, std::string_view kind) {
  mlir::OpAsmParser& parser = state.parser;
  if (kind == "i64" || kind == "i32") {
    int64_t value = 0;
    const llvm::SMLoc location = parser.getCurrentLocation();
    if (parser.parseInteger(value)) {
      return failure();
    }
    if (kind == "i32" && value != static_cast<int32_t>(value)) {
      return parser.emitError(location, "expected a 32-bit integer");
    }
    state.add(name, kind == "i64" ? state.builder().getI64IntegerAttr(value)
                                  : state.builder().getI32IntegerAttr(static_cast<int32_t>(value)));
    return success();
  }
  if (kind == "dims") {
    return state.parse_dims(name);
  }
  if (kind == "string") {
    std::string value;
    if (parser.parseString(&value)) {
      return failure();
    }
    state.add(name, state.builder().getStringAttr(value));
    return success();
  }
  if (kind == "symbol") {
    mlir::StringAttr symbol;
    if (parser.parseSymbolName(symbol)) {
      return failure();
    }
    state.add(name, symbol);
    return success();
  }
  if (kind.starts_with("enum(") && kind.ends_with(")")) {
    return state.parse_enum(name, kind.substr(5, kind.size() - 6));
  }
  return parser.emitError(state.start, "internal error: syntax of unknown kind");
}

mlir::Type real_counterpart(mlir::Type type) {
  const auto tensor = mlir::dyn_cast<mlir::RankedTensorType>(type);
  if (!tensor) {
    return {};
  }
  const auto element = mlir::dyn_cast<mlir::ComplexType>(tensor.getElementType());
  return element ? mlir::RankedTensorType::get(tensor.getShape(), element.getElementType(), tensor.getEncoding())
                 : mlir::Type();
}

// ":same", ":select", ":complex" and ":tuple": a short form, or the function type.
ParseResult parse_short_types(SyntaxState& state, std::string_view form) {
  mlir::OpAsmParser& parser = state.parser;
  const llvm::SMLoc location = parser.getCurrentLocation();
  llvm::SmallVector<mlir::Type, 2> types;
  if (parser.parseTypeList(types)) {
    return failure();
  }
  if (types.size() == 1) {
    if (const auto function = mlir::dyn_cast<mlir::FunctionType>(types[0]); function && form != "tuple") {
      return state.apply(function);
    }
  }
  llvm::SmallVector<mlir::Type, 4> operand_types(state.operands.size(), types.front());
  mlir::Type result = types.front();
  if (form == "select") {
    if (types.size() != 2) {
      return parser.emitError(location, "expected two types, or a function type");
    }
    operand_types.assign({types[0], types[1], types[1]});
    result = types[1];
  } else if (types.size() != 1) {
    return parser.emitError(location, "expected one type, or a function type");
  } else if (form == "complex") {
    const mlir::Type real = real_counterpart(result);
    if (!real) {
      return parser.emitError(location, "expected a tensor of complex numbers");
    }
    operand_types.assign(state.operands.size(), real);
  } else if (form == "tuple") {
    const auto tuple = mlir::dyn_cast<mlir::TupleType>(result);
    if (!tuple) {
      return parser.emitError(location, "expected a tuple type");
    }
    operand_types.assign(tuple.getTypes().begin(), tuple.getTypes().end());
  }
  state.result.addTypes(result);
  return state.resolve(operand_types);
}

ParseResult parse_types(SyntaxState& state, std::string_view form) {
  mlir::OpAsmParser& parser = state.parser;
  if (parser.parseColon()) {
    return failure();
  }
  if (form == "func") {
    mlir::FunctionType type;
    return failure(failed(parser.parseType(type)) || failed(state.apply(type)));
  }
  if (form == "result") {
    return parser.parseTypeList(state.result.types);
  }
  if (form == "arrow") {
    llvm::SmallVector<mlir::Type, 2> operand_types;
    return failure(failed(parser.parseTypeList(operand_types)) ||
                   failed(parser.parseArrowTypeList(state.result.types)) || failed(state.resolve(operand_types)));
  }
  return parse_short_types(state, form);
}

ParseResult parse_punctuation(mlir::OpAsmParser& parser, char c) {
  switch (c) {
    case ',':
      return parser.parseComma();
    case '=':
      return parser.parseEqual();
    case '(':
      return parser.parseLParen();
    case ')':
      return parser.parseRParen();
    case '[':
      return parser.parseLSquare();
    default:
      return parser.parseRSquare();
  }
}

ParseResult parse_word(SyntaxState& state, std::string_view word) {
  mlir::OpAsmParser& parser = state.parser;
  if (word == "%") {
    return parser.parseOperand(state.operands.emplace_back());
  }
  if (word == "%*" || word == "%*,") {
    return parse_operand_list(state, word == "%*,");
  }
  if (word == "{}") {
    return parser.parseOptionalAttrDict(state.result.attributes);
  }
  const std::string_view rest = word.substr(1);
  switch (word.front()) {
    case '$': {
      const size_t colon = rest.find(':');
      return parse_attribute(state, rest.substr(0, colon), rest.substr(colon + 1));
    }
    case '!':
      return find_special_syntax(rest)(state);
    case ':':
      return parse_types(state, rest);
    case ',':
    case '=':
    case '(':
    case ')':
    case '[':
    case ']':
      return parse_punctuation(parser, word.front());
    default:
      return parser.parseKeyword(llvm::StringRef(word.data(), word.size()));
  }
}

ParseResult parse_operation(const OpInfo& op, mlir::OpAsmParser& parser, mlir::OperationState& result) {
  SyntaxState state{parser, result, op, parser.getCurrentLocation()};
  std::string_view rest = op.syntax;
  while (!rest.empty()) {
    const size_t size = std::min(rest.find(' '), rest.size());
    if (parse_word(state, rest.substr(0, size))) {
      return failure();
    }
    rest.remove_prefix(std::min(size + 1, rest.size()));
  }
  return success();
}

ParseResult refuse_unknown(mlir::OpAsmParser& parser, mlir::OperationState& result) {
  return parser.emitError(parser.getNameLoc())
         << "'" << result.name.getStringRef() << "' has no pretty form that is known here: write it in MLIR's generic "
         << "form, \"" << result.name.getStringRef() << "\"(...)";
}

ParseResult parse_elementwise(mlir::OpAsmParser& parser, mlir::OperationState& result) {
  static constexpr OpInfo kUnknown{};
  SyntaxState state{parser, result, kUnknown, parser.getCurrentLocation()};
  do {
    mlir::OpAsmParser::UnresolvedOperand operand;
    const mlir::OptionalParseResult parsed = parser.parseOptionalOperand(operand);
    if (!parsed.has_value()) {
      return refuse_unknown(parser, result);
    }
    if (*parsed) {
      return failure();
    }
    state.operands.push_back(operand);
  } while (succeeded(parser.parseOptionalComma()));
  if (parser.parseOptionalAttrDict(result.attributes)) {
    return failure();
  }
  return parser.parseOptionalColon() ? refuse_unknown(parser, result) : parse_short_types(state, "same");
}

// ParseOpHook is a reference to a function object that must outlive the parse. There is one for each operation, created
// once.
using Hooks = std::vector<std::function<ParseResult(mlir::OpAsmParser&, mlir::OperationState&)>>;

const Hooks& hooks() {
  static constinit Lazy<const Hooks> all;
  return all.get([] {
    Hooks made(all_ops().size() + 1, refuse_unknown);
    for (const OpInfo& op : all_ops()) {
      if (*op.syntax != '\0') {
        made[static_cast<size_t>(op.kind)] = [&op](mlir::OpAsmParser& parser, mlir::OperationState& result) {
          return parse_operation(op, parser, result);
        };
      }
    }
    return made;
  });
}

}  // namespace

std::optional<mlir::Dialect::ParseOpHook> parse_hook(const OpInfo* op) {
  return mlir::Dialect::ParseOpHook(hooks()[op ? static_cast<size_t>(op->kind) : 0]);
}

mlir::Dialect::ParseOpHook elementwise_hook() {
  static constinit Lazy<const Hooks::value_type> hook;
  return mlir::Dialect::ParseOpHook(hook.get([] { return Hooks::value_type(parse_elementwise); }));
}

}  // namespace flashlift::stablehlo
