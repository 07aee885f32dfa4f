// Parts of StableHLO's pretty form that no general rule describes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mlir/IR/Block.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Region.h"
#include "stablehlo/reader/attributes.h"
#include "stablehlo/reader/syntax_state.h"

namespace flashlift::stablehlo {
namespace {

using mlir::failed;
using mlir::failure;
using mlir::ParseResult;
using mlir::succeeded;
using mlir::success;
using Delimiter = mlir::OpAsmParser::Delimiter;

ParseResult parse_integers(mlir::OpAsmParser& parser, std::vector<int64_t>& list) {
  return parser.parseCommaSeparatedList(Delimiter::Square,
                                        [&]() -> ParseResult { return parser.parseInteger(list.emplace_back()); });
}

// [0:4, 1:8:2]
ParseResult parse_slice(SyntaxState& state) {
  std::vector<int64_t> start, limit, stride;
  mlir::OpAsmParser& parser = state.parser;
  const auto parse_range = [&]() -> ParseResult {
    if (parser.parseInteger(start.emplace_back()) || parser.parseColon() || parser.parseInteger(limit.emplace_back())) {
      return failure();
    }
    stride.push_back(1);
    return succeeded(parser.parseOptionalColon()) ? parser.parseInteger(stride.back()) : success();
  };
  if (parser.parseCommaSeparatedList(Delimiter::Square, parse_range)) {
    return failure();
  }
  state.add("start_indices", state.builder().getDenseI64ArrayAttr(start));
  state.add("limit_indices", state.builder().getDenseI64ArrayAttr(limit));
  state.add("strides", state.builder().getDenseI64ArrayAttr(stride));
  return success();
}

// batching_dims = [0] x [0], contracting_dims = [2] x [1]
ParseResult parse_dot_dims(SyntaxState& state) {
  DotDims dims;
  mlir::OpAsmParser& parser = state.parser;
  if (succeeded(parser.parseOptionalKeyword("batching_dims"))) {
    if (parser.parseEqual() || parse_integers(parser, dims.lhs_batch) || parser.parseKeyword("x") ||
        parse_integers(parser, dims.rhs_batch) || parser.parseComma()) {
      return failure();
    }
  }
  if (parser.parseKeyword("contracting_dims") || parser.parseEqual() || parse_integers(parser, dims.lhs_contract) ||
      parser.parseKeyword("x") || parse_integers(parser, dims.rhs_contract)) {
    return failure();
  }
  state.add("dot_dimension_numbers", state.text_attribute(print_dot(dims)));
  return success();
}

// precision = [DEFAULT, HIGHEST], after the keyword was read
ParseResult parse_precision_list(SyntaxState& state) {
  llvm::SmallVector<mlir::Attribute, 2> precisions;
  const auto parse_one = [&]() -> ParseResult {
    llvm::StringRef keyword;
    if (state.parser.parseKeyword(&keyword)) {
      return failure();
    }
    precisions.push_back(state.text_attribute("precision " + keyword.str()));
    return success();
  };
  if (state.parser.parseEqual() || state.parser.parseCommaSeparatedList(Delimiter::Square, parse_one)) {
    return failure();
  }
  state.add("precision_config", state.builder().getArrayAttr(precisions));
  return success();
}

ParseResult parse_precision(SyntaxState& state) {
  if (failed(state.parser.parseOptionalComma())) {
    return success();
  }
  return failure(failed(state.parser.parseKeyword("precision")) || failed(parse_precision_list(state)));
}

// <lhs_precision_type = bf16, ..., allow_imprecise_accumulation = false>
ParseResult parse_algorithm(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  std::vector<std::string> fields;
  const auto parse_field = [&]() -> ParseResult {
    llvm::StringRef name, keyword;
    mlir::Type type;
    int64_t number = 0;
    if (parser.parseKeyword(&name) || parser.parseEqual()) {
      return failure();
    }
    // Tried before integers, since MLIR reads true and false as integers, too.
    if (succeeded(parser.parseOptionalKeyword(&keyword, {"true", "false"}))) {
      fields.push_back(fmt::format("{} = {}", name.str(), keyword.str()));
      return success();
    }
    const mlir::OptionalParseResult integer = parser.parseOptionalInteger(number);
    if (integer.has_value()) {
      fields.push_back(fmt::format("{} = {}", name.str(), number));
      return *integer;
    }
    if (parser.parseType(type)) {
      return failure();
    }
    std::string text;
    llvm::raw_string_ostream(text) << type;
    fields.push_back(fmt::format("{} = {}", name.str(), text));
    return success();
  };
  if (parser.parseEqual() || parser.parseCommaSeparatedList(Delimiter::LessGreater, parse_field)) {
    return failure();
  }
  state.add("algorithm", state.text_attribute(fmt::format("dot_algorithm<{}>", fmt::join(fields, ", "))));
  return success();
}

// Nothing, or one or both of ", precision = [...]" and ", algorithm = <...>".
ParseResult parse_precision_algorithm(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  if (failed(parser.parseOptionalComma())) {
    return success();
  }
  if (succeeded(parser.parseOptionalKeyword("precision"))) {
    if (parse_precision_list(state)) {
      return failure();
    }
    if (failed(parser.parseOptionalComma())) {
      return success();
    }
  }
  return failure(failed(parser.parseKeyword("algorithm")) || failed(parse_algorithm(state)));
}

ParseResult parse_compare_type(SyntaxState& state) {
  if (failed(state.parser.parseOptionalComma())) {
    return success();
  }
  return state.parse_enum("compare_type", "comparison_type");
}

ParseResult parse_optional_bool(SyntaxState& state, const char* name) {
  if (failed(state.parser.parseOptionalComma())) {
    return success();
  }
  llvm::StringRef value;
  if (state.parser.parseKeyword(name) || state.parser.parseEqual() ||
      state.parser.parseOptionalKeyword(&value, {"true", "false"})) {
    return state.parser.emitError(state.parser.getCurrentLocation()) << "expected '" << name << " = true' or false";
  }
  state.add(name, state.builder().getBoolAttr(value == "true"));
  return success();
}

ParseResult parse_lower(SyntaxState& state) { return parse_optional_bool(state, "lower"); }
ParseResult parse_is_stable(SyntaxState& state) { return parse_optional_bool(state, "is_stable"); }

// e8m10
ParseResult parse_exponent_mantissa(SyntaxState& state) {
  const llvm::SMLoc location = state.parser.getCurrentLocation();
  llvm::StringRef word;
  if (state.parser.parseKeyword(&word)) {
    return failure();
  }
  int32_t exponent = 0;
  int32_t mantissa = 0;
  llvm::StringRef rest = word;
  if (!rest.consume_front("e") || rest.consumeInteger(10, exponent) || !rest.consume_front("m") ||
      rest.getAsInteger(10, mantissa)) {
    return state.parser.emitError(location) << "expected a format such as e8m10, got '" << word << "'";
  }
  state.add("exponent_bits", state.builder().getI32IntegerAttr(exponent));
  state.add("mantissa_bits", state.builder().getI32IntegerAttr(mantissa));
  return success();
}

// [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]
ParseResult parse_conv_dims(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  const auto parse_layout = [&](std::string& text) -> ParseResult {
    std::vector<std::string> dims;
    const auto parse_dim = [&]() -> ParseResult {
      int64_t number = 0;
      const mlir::OptionalParseResult integer = parser.parseOptionalInteger(number);
      if (integer.has_value()) {
        dims.push_back(std::to_string(number));
        return *integer;
      }
      llvm::StringRef keyword;
      if (parser.parseKeyword(&keyword)) {
        return failure();
      }
      dims.push_back(keyword.str());
      return success();
    };
    if (parser.parseCommaSeparatedList(Delimiter::Square, parse_dim)) {
      return failure();
    }
    text = fmt::format("[{}]", fmt::join(dims, ", "));
    return success();
  };
  std::string input, kernel, output;
  if (parse_layout(input) || parser.parseKeyword("x") || parse_layout(kernel) || parser.parseArrow() ||
      parse_layout(output)) {
    return failure();
  }
  state.add("dimension_numbers", state.text_attribute(fmt::format("conv<{}x{}->{}>", input, kernel, output)));
  return success();
}

ParseResult parse_window_padding(SyntaxState& state) {
  llvm::SmallVector<int64_t, 8> values;
  mlir::OpAsmParser& parser = state.parser;
  const auto parse_pair = [&]() -> ParseResult {
    if (parser.parseLSquare() || parser.parseInteger(values.emplace_back()) || parser.parseComma() ||
        parser.parseInteger(values.emplace_back()) || parser.parseRSquare()) {
      return failure();
    }
    return success();
  };
  if (parser.parseCommaSeparatedList(Delimiter::Square, parse_pair)) {
    return failure();
  }
  const auto type =
      mlir::RankedTensorType::get({static_cast<int64_t>(values.size()) / 2, 2}, state.builder().getI64Type());
  state.add("padding", mlir::DenseElementsAttr::get(type, llvm::ArrayRef<int64_t>(values)));
  return success();
}

ParseResult parse_window_reversal(SyntaxState& state) {
  llvm::SmallVector<bool, 4> values;
  mlir::OpAsmParser& parser = state.parser;
  const auto parse_one = [&]() -> ParseResult {
    int64_t number = 0;
    const mlir::OptionalParseResult integer = parser.parseOptionalInteger(number);
    if (integer.has_value()) {
      values.push_back(number != 0);
      return *integer;
    }
    llvm::StringRef word;
    if (parser.parseKeyword(&word)) {
      return failure();
    }
    values.push_back(word == "true");
    return success();
  };
  if (parser.parseCommaSeparatedList(Delimiter::Square, parse_one)) {
    return failure();
  }
  state.add("window_reversal", state.builder().getDenseBoolArrayAttr(values));
  return success();
}

// {stride = [1, 1], pad = [[0, 0], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [0, 0]}
ParseResult parse_window(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  const auto parse_field = [&]() -> ParseResult {
    const llvm::SMLoc location = parser.getCurrentLocation();
    llvm::StringRef name;
    // "window = {}" is an empty list.
    if (failed(parser.parseOptionalKeyword(&name))) {
      return success();
    }
    if (parser.parseEqual()) {
      return failure();
    }
    if (name == "stride") {
      return state.parse_dims("window_strides");
    }
    if (name == "lhs_dilate") {
      return state.parse_dims("lhs_dilation");
    }
    if (name == "rhs_dilate") {
      return state.parse_dims("rhs_dilation");
    }
    if (name == "pad") {
      return parse_window_padding(state);
    }
    if (name == "reverse") {
      return parse_window_reversal(state);
    }
    return parser.emitError(location) << "expected stride, pad, lhs_dilate, rhs_dilate or reverse, got '" << name
                                      << "'";
  };
  return parser.parseCommaSeparatedList(Delimiter::Braces, parse_field);
}

// dense<...> : type; or the generic form without its quotes, if the result's type differs from the value's
ParseResult parse_constant(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  if (succeeded(parser.parseOptionalLParen())) {
    mlir::FunctionType type;
    mlir::Attribute properties;
    if (parser.parseRParen()) {
      return failure();
    }
    if (succeeded(parser.parseOptionalLess()) && (parser.parseAttribute(properties) || parser.parseGreater())) {
      return failure();
    }
    if (const auto dictionary = mlir::dyn_cast_or_null<mlir::DictionaryAttr>(properties)) {
      state.result.addAttributes(dictionary.getValue());
    }
    return failure(failed(parser.parseOptionalAttrDict(state.result.attributes)) || failed(parser.parseColon()) ||
                   failed(parser.parseType(type)) || failed(state.apply(type)));
  }
  mlir::Attribute value;
  const llvm::SMLoc location = parser.getCurrentLocation();
  if (parser.parseOptionalAttrDict(state.result.attributes) || parser.parseAttribute(value)) {
    return failure();
  }
  const auto typed = mlir::dyn_cast<mlir::TypedAttr>(value);
  if (!typed || !mlir::isa<mlir::ElementsAttr>(value)) {
    return parser.emitError(location, "expected the elements of a tensor, such as dense<0> : tensor<2xi32>");
  }
  state.add("value", value);
  state.result.addTypes(typed.getType());
  return success();
}

ParseResult parse_optional_types(SyntaxState& state) {
  llvm::SmallVector<mlir::Type, 4> types;
  if (!state.operands.empty() && state.parser.parseColonTypeList(types)) {
    return failure();
  }
  return state.resolve(types);
}

// %0, %1 : types; or () if there are no operands
ParseResult parse_barrier(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  if (succeeded(parser.parseOptionalLParen())) {
    return parser.parseRParen();
  }
  llvm::SmallVector<mlir::Type, 4> types;
  if (parser.parseOperandList(state.operands) || parser.parseColonTypeList(types)) {
    return failure();
  }
  state.result.addTypes(types);
  return state.resolve(types);
}

// Nothing, or (region, region)
ParseResult parse_composite_regions(SyntaxState& state) {
  if (failed(state.parser.parseOptionalLParen())) {
    return success();
  }
  do {
    if (state.parser.parseRegion(*state.result.addRegion())) {
      return failure();
    }
  } while (succeeded(state.parser.parseOptionalComma()));
  return state.parser.parseRParen();
}

// (%arg = %init, ...) : types attributes {...} cond {...} do {...}
ParseResult parse_while(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  llvm::SmallVector<mlir::OpAsmParser::Argument, 4> arguments;
  const auto parse_one = [&]() -> ParseResult {
    return failure(failed(parser.parseOperand(arguments.emplace_back().ssaName, /*allowResultNumber=*/false)) ||
                   failed(parser.parseEqual()) || failed(parser.parseOperand(state.operands.emplace_back())));
  };
  if (parser.parseCommaSeparatedList(Delimiter::Paren, parse_one)) {
    return failure();
  }
  llvm::SmallVector<mlir::Type, 4> types;
  if (!arguments.empty() && parser.parseColonTypeList(types)) {
    return failure();
  }
  if (state.resolve(types)) {
    return failure();
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    arguments[i].type = types[i];
  }
  state.result.addTypes(types);
  return failure(failed(parser.parseOptionalAttrDictWithKeyword(state.result.attributes)) ||
                 failed(parser.parseKeyword("cond")) ||
                 failed(parser.parseRegion(*state.result.addRegion(), arguments)) ||
                 failed(parser.parseKeyword("do")) || failed(parser.parseRegion(*state.result.addRegion(), arguments)));
}

// Builds the region of "applies stablehlo.add": one operation on two scalars of the first input's element type.
ParseResult build_reducer(SyntaxState& state, mlir::OperationName inner, mlir::FunctionType type) {
  mlir::OpAsmParser& parser = state.parser;
  const auto tensor = type.getNumInputs() > 0 ? mlir::dyn_cast<mlir::TensorType>(type.getInput(0)) : mlir::TensorType();
  if (!tensor) {
    return parser.emitError(state.start, "expected a tensor as the first operand of a reduction");
  }
  const mlir::Location location = parser.getEncodedSourceLoc(state.start);
  const mlir::Type scalar = mlir::RankedTensorType::get({}, tensor.getElementType());
  mlir::Block& block = state.result.addRegion()->emplaceBlock();
  block.addArguments({scalar, scalar}, {location, location});
  mlir::OpBuilder builder(parser.getContext());
  builder.setInsertionPointToEnd(&block);
  mlir::OperationState reduce(location, inner, block.getArguments(), {scalar});
  mlir::Operation* reduced = builder.create(reduce);
  mlir::OperationState terminator(location, "stablehlo.return");
  terminator.addOperands(reduced->getResults());
  builder.create(terminator);
  return success();
}

// "reducer(%a: type, %b: type) (...) {...}", after the keyword was read
ParseResult parse_reducer(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  llvm::SmallVector<mlir::OpAsmParser::Argument, 4> arguments, inits;
  while (succeeded(parser.parseOptionalLParen())) {
    if (parser.parseArgument(arguments.emplace_back(), /*allowType=*/true) || parser.parseComma() ||
        parser.parseArgument(inits.emplace_back(), /*allowType=*/true) || parser.parseRParen()) {
      return failure();
    }
  }
  arguments.append(inits);
  return parser.parseRegion(*state.result.addRegion(), arguments);
}

bool is_reducing(const OpInfo* op) {
  if (op == nullptr) {
    return false;
  }
  switch (op->kind) {
    case OpKind::kAdd:
    case OpKind::kMultiply:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
      return true;
    default:
      return false;
  }
}

// (%x init: %i), ... applies stablehlo.add across dimensions = [1] {...} : function type
// (%x init: %i), ... across dimensions = [1] {...} : function type reducer(...) {...}
ParseResult parse_reduce(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  llvm::SmallVector<mlir::OpAsmParser::UnresolvedOperand, 2> inits;
  const auto parse_one = [&]() -> ParseResult {
    return failure(failed(parser.parseLParen()) || failed(parser.parseOperand(state.operands.emplace_back())) ||
                   failed(parser.parseKeyword("init")) || failed(parser.parseColon()) ||
                   failed(parser.parseOperand(inits.emplace_back())) || failed(parser.parseRParen()));
  };
  if (parser.parseCommaSeparatedList(parse_one)) {
    return failure();
  }
  state.operands.append(inits);
  std::optional<mlir::OperationName> inner;
  if (succeeded(parser.parseOptionalKeyword("applies"))) {
    const llvm::SMLoc location = parser.getCurrentLocation();
    const mlir::FailureOr<mlir::OperationName> name = parser.parseCustomOperationName();
    if (failed(name)) {
      return failure();
    }
    const llvm::StringRef text = name->getStringRef();
    if (!is_reducing(find_op({text.data(), text.size()}))) {
      return parser.emitError(location) << "expected a commutative operation of two operands, got '" << text << "'";
    }
    inner = *name;
  }
  mlir::FunctionType type;
  if (parser.parseKeyword("across") || parser.parseKeyword("dimensions") || parser.parseEqual() ||
      state.parse_dims("dimensions") || parser.parseOptionalAttrDict(state.result.attributes) || parser.parseColon() ||
      parser.parseType(type)) {
    return failure();
  }
  if (inner) {
    return failure(failed(build_reducer(state, *inner, type)) || failed(state.apply(type)));
  }
  return failure(failed(state.apply(type)) || failed(parser.parseKeyword("reducer")) || failed(parse_reducer(state)));
}

// (%x) inits (%i) dimension=0 attributes {...} {region} : function type
ParseResult parse_scan(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  llvm::SmallVector<mlir::OpAsmParser::UnresolvedOperand, 2> inits;
  int64_t dimension = 0;
  mlir::FunctionType type;
  if (parser.parseOperandList(state.operands, Delimiter::Paren) || parser.parseKeyword("inits") ||
      parser.parseOperandList(inits, Delimiter::Paren) || parser.parseKeyword("dimension") || parser.parseEqual() ||
      parser.parseInteger(dimension) || parser.parseOptionalAttrDictWithKeyword(state.result.attributes) ||
      parser.parseRegion(*state.result.addRegion()) || parser.parseColonType(type)) {
    return failure();
  }
  const auto inputs = static_cast<int32_t>(state.operands.size());
  const auto carries = static_cast<int32_t>(inits.size());
  const int32_t outputs = static_cast<int32_t>(type.getNumResults()) - carries;
  if (outputs < 0) {
    return parser.emitError(state.start, "expected a result for each of the carried values");
  }
  state.operands.append(inits);
  state.add("dimension", state.builder().getI64IntegerAttr(dimension));
  state.add("operandSegmentSizes", state.builder().getDenseI32ArrayAttr({inputs, carries}));
  state.add("resultSegmentSizes", state.builder().getDenseI32ArrayAttr({outputs, carries}));
  return state.apply(type);
}

// Reads the following brackets with everything in them, including nested ones, in the spelling of Shardy's printer: a
// space after each comma and no other spaces.
ParseResult parse_brackets(SyntaxState& state, std::string& text) {
  mlir::OpAsmParser& parser = state.parser;
  int depth = 0;
  do {
    std::string string;
    mlir::StringAttr symbol;
    llvm::StringRef keyword;
    int64_t number = 0;
    const auto take = [&](ParseResult parsed, const char* spelling, int opens) {
      if (failed(parsed)) {
        return false;
      }
      text += spelling;
      depth += opens;
      return true;
    };
    if (take(parser.parseOptionalLess(), "<", 1) || take(parser.parseOptionalLSquare(), "[", 1) ||
        take(parser.parseOptionalLBrace(), "{", 1) || take(parser.parseOptionalLParen(), "(", 1) ||
        take(parser.parseOptionalGreater(), ">", -1) || take(parser.parseOptionalRSquare(), "]", -1) ||
        take(parser.parseOptionalRBrace(), "}", -1) || take(parser.parseOptionalRParen(), ")", -1)) {
      continue;
    }
    if (depth == 0) {
      return parser.emitError(parser.getCurrentLocation(), "expected a bracket");
    }
    if (take(parser.parseOptionalComma(), ", ", 0) || take(parser.parseOptionalColon(), ":", 0) ||
        take(parser.parseOptionalEqual(), "=", 0) || take(parser.parseOptionalQuestion(), "?", 0) ||
        take(parser.parseOptionalArrow(), "->", 0)) {
      continue;
    }
    llvm::raw_string_ostream stream(text);
    if (succeeded(parser.parseOptionalString(&string))) {
      stream << mlir::StringAttr::get(parser.getContext(), string);
    } else if (succeeded(parser.parseOptionalSymbolName(symbol))) {
      stream << mlir::FlatSymbolRefAttr::get(symbol);
    } else if (succeeded(parser.parseOptionalKeyword(&keyword))) {
      stream << keyword;
    } else if (const mlir::OptionalParseResult parsed = parser.parseOptionalInteger(number);
               parsed.has_value() && succeeded(*parsed)) {
      stream << number;
    } else {
      return parser.emitError(parser.getCurrentLocation(), "expected the rest of a sharding");
    }
  } while (depth > 0);
  return success();
}

// name[...] as #sdy.name[...]
ParseResult add_sdy_attribute(SyntaxState& state, std::string_view name, std::string mnemonic, const char* before = "",
                              const char* after = "") {
  std::string text = std::move(mnemonic) + before;
  if (parse_brackets(state, text)) {
    return failure();
  }
  mlir::MLIRContext* context = state.parser.getContext();
  state.add(name,
            mlir::OpaqueAttr::get(mlir::StringAttr::get(context, "sdy"), text + after, mlir::NoneType::get(context)));
  return success();
}

// @mesh = <["a"=2]>
ParseResult parse_sdy_mesh(SyntaxState& state) {
  mlir::StringAttr name;
  if (state.parser.parseSymbolName(name) || state.parser.parseEqual()) {
    return failure();
  }
  state.add("sym_name", name);
  return add_sdy_attribute(state, "mesh", "mesh");
}

// <@mesh, [{"a"}, {}]>
ParseResult parse_sdy_sharding(SyntaxState& state) { return add_sdy_attribute(state, "sharding", "sharding"); }

// ": type" of the operand, for an operation without results
ParseResult parse_sdy_operand_type(SyntaxState& state) {
  mlir::Type type;
  return failure(failed(state.parser.parseColonType(type)) || failed(state.resolve(type)));
}

// (%x) in_shardings=[<...>] out_shardings=[<...>] manual_axes={"a"} (%y: type) {...} : function type
ParseResult parse_sdy_manual_computation(SyntaxState& state) {
  mlir::OpAsmParser& parser = state.parser;
  const auto parse_named = [&](const char* name) -> ParseResult {
    return failure(failed(parser.parseKeyword(name)) || failed(parser.parseEqual()));
  };
  llvm::SmallVector<mlir::OpAsmParser::Argument, 4> arguments;
  mlir::FunctionType type;
  if (parser.parseOperandList(state.operands, Delimiter::Paren) || parse_named("in_shardings") ||
      add_sdy_attribute(state, "in_shardings", "sharding_per_value", "<", ">") || parse_named("out_shardings") ||
      add_sdy_attribute(state, "out_shardings", "sharding_per_value", "<", ">") || parse_named("manual_axes") ||
      add_sdy_attribute(state, "manual_axes", "manual_axes") ||
      parser.parseArgumentList(arguments, Delimiter::Paren, /*allowType=*/true) ||
      parser.parseRegion(*state.result.addRegion(), arguments) ||
      parser.parseOptionalAttrDict(state.result.attributes) || parser.parseColonType(type)) {
    return failure();
  }
  return state.apply(type);
}

}  // namespace

SpecialSyntax find_special_syntax(std::string_view name) {
  static constexpr std::pair<std::string_view, SpecialSyntax> kTable[] = {
      {"barrier", parse_barrier},
      {"compare_type", parse_compare_type},
      {"composite_regions", parse_composite_regions},
      {"constant", parse_constant},
      {"conv", parse_conv_dims},
      {"dot", parse_dot_dims},
      {"exponent_mantissa", parse_exponent_mantissa},
      {"is_stable", parse_is_stable},
      {"lower", parse_lower},
      {"optional_types", parse_optional_types},
      {"precision", parse_precision},
      {"precision_algorithm", parse_precision_algorithm},
      {"reduce", parse_reduce},
      {"scan", parse_scan},
      {"sdy_manual_computation", parse_sdy_manual_computation},
      {"sdy_mesh", parse_sdy_mesh},
      {"sdy_operand_type", parse_sdy_operand_type},
      {"sdy_sharding", parse_sdy_sharding},
      {"slice", parse_slice},
      {"while", parse_while},
      {"window", parse_window},
  };
  for (const auto& [key, function] : kTable) {
    if (key == name) {
      return function;
    }
  }
  return nullptr;
}

}  // namespace flashlift::stablehlo
