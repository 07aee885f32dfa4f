#include "stablehlo/split_call.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "fmt/ranges.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "stablehlo/sharding_finder.h"
#include "support/counted.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using Axes = std::vector<std::string>;

// The dimensions of a tensor with one row for each query. 'q' distinguishes its sequence from that of the keys.
std::string of_rows(std::string dims) {
  std::replace(dims.begin(), dims.end(), 's', 'q');
  return dims;
}

// How often each key-value head is repeated, so that devices can share the repeated heads evenly. One head for all
// queries is not split.
int64_t repeats_of_heads(const Problem& problem, const Split& split) {
  const int64_t heads = problem.kv_heads;
  return heads == 1 ? 1 : std::lcm(heads, split.parts('h')) / heads;
}

// A tensor whose heads are one dimension: the first of those that they were.
struct OfOneHeadDimension {
  llvm::SmallVector<int64_t> shape;
  std::string dims;

  OfOneHeadDimension(llvm::ArrayRef<int64_t> given, std::string letters)
      : shape(given), dims(std::move(letters)), at(dims.find('h')) {
    for (size_t i = dims.rfind('h'); i != at; i = dims.rfind('h')) {
      shape[at] *= shape[i];
      shape.erase(shape.begin() + i);
      dims.erase(i, 1);
    }
  }

  void repeat(int64_t repeats) {
    if (at != std::string::npos) {
      shape[at] *= repeats;
    }
  }

  size_t at;  // npos if it has none
};

struct Part {
  Sharding sharding;
  llvm::SmallVector<int64_t> shape;  // the shape of one device's part
};

Result<Part> part_of(const std::string& name, llvm::ArrayRef<int64_t> shape, const std::string& letters,
                     const Split& split) {
  Part part{{split.mesh, std::vector<Axes>(shape.size())}, llvm::SmallVector<int64_t>(shape)};
  for (const SplitBy& by : split.by) {
    for (size_t i = 0; i < shape.size() && by.parts > 1; ++i) {
      if (letters[i] != by.letter || shape[i] == 1) {
        continue;
      }
      if (shape[i] % by.parts != 0) {
        return unsupported("{} has {} {} that {} devices cannot share evenly", name, shape[i], by.what, by.parts);
      }
      part.sharding.dims[i] = by.axes;
      part.shape[i] /= by.parts;
      break;  // only the most significant digit is split
    }
  }
  return part;
}

// The letters of a call's operands and results, in their order.
struct CallLetters {
  std::vector<std::string> operands;
  std::vector<std::string> results;
};

Result<CallLetters> letters_of(mlir::Operation* call, mlir::DictionaryAttr config, const Problem& problem,
                               const CaptureDims& captures) {
  const auto word = [&](const char* name) {
    const auto value = config.getAs<mlir::StringAttr>(name);
    return value ? value.str() : std::string();
  };
  const auto gradient_word = [&](const char* gradient, const char* tensor) {
    return word(gradient).empty() ? word(tensor) : word(gradient);
  };
  CallLetters letters{.operands = {of_rows(word("q_dims")), word("k_dims"), word("v_dims")}, .results = {}};
  for (const Capture& capture : problem.captures) {
    letters.operands.push_back(captures.at(capture.name));
  }
  if (problem.sinks > 0) {
    letters.operands.emplace_back("h1");
  }
  if (problem.keep_mask) {
    letters.operands.emplace_back("bhq1");
  }
  std::vector<std::string> outputs = {of_rows(word("out_dims"))};
  std::vector<std::string> their_gradients = {of_rows(gradient_word("d_out_dims", "out_dims"))};
  if (problem.want_lse) {
    outputs.push_back(of_rows(word("lse_dims")));
    their_gradients.push_back(of_rows(gradient_word("d_lse_dims", "lse_dims")));
  }
  if (custom_call(call)->target == "flashlift.attention") {
    letters.results = outputs;
  } else {
    std::vector<std::string> gradients = letters.operands;
    gradients[0] = of_rows(gradient_word("d_q_dims", "q_dims"));
    gradients[1] = gradient_word("d_k_dims", "k_dims");
    gradients[2] = gradient_word("d_v_dims", "v_dims");
    std::istringstream positions(word("gradients"));
    for (size_t position = 0; positions >> position;) {
      if (position >= gradients.size()) {
        return internal_error("a backward call requests the gradient of operand {}", position);
      }
      letters.results.push_back(gradients[position]);
    }
    letters.operands.insert(letters.operands.end(), outputs.begin(), outputs.end());
    letters.operands.insert(letters.operands.end(), their_gradients.begin(), their_gradients.end());
  }
  if (letters.operands.size() != call->getNumOperands() || letters.results.size() != call->getNumResults()) {
    return internal_error("a call has {} operands and {} results; expected {} and {}", call->getNumOperands(),
                          call->getNumResults(), letters.operands.size(), letters.results.size());
  }
  return letters;
}

// One device's parts of the call's operands or results.
Result<std::vector<Part>> parts_of(mlir::ValueRange values, const std::vector<std::string>& letters,
                                   const Split& split) {
  std::vector<Part> parts;
  for (const auto [i, value] : llvm::enumerate(values)) {
    FLASHLIFT_ASSIGN_OR_RETURN(Part part, part_of("a tensor", shape(value), letters[i], split));
    parts.push_back(std::move(part));
  }
  return parts;
}

llvm::SmallVector<mlir::Type> types_of(mlir::ValueRange values, const std::vector<Part>& parts) {
  llvm::SmallVector<mlir::Type> types;
  for (const auto [value, part] : llvm::zip_equal(values, parts)) {
    types.push_back(mlir::cast<mlir::RankedTensorType>(value.getType()).clone(part.shape));
  }
  return types;
}

// A tensor with the number of each device's first batch, head or query.
mlir::Value numbers_of_firsts(mlir::OpBuilder& builder, mlir::Location location, char letter, const Problem& local,
                              const Split& split) {
  const int64_t size = letter == 'b' ? local.batch : letter == 'h' ? local.q_heads : local.q_len;
  llvm::SmallVector<int32_t> numbers;
  for (int64_t i = 0; i < split.parts(letter); ++i) {
    numbers.push_back(static_cast<int32_t>(i * size));
  }
  const auto type = mlir::RankedTensorType::get({split.parts(letter)}, builder.getI32Type());
  const mlir::NamedAttribute value(builder.getStringAttr("value"),
                                   mlir::DenseElementsAttr::get(type, llvm::ArrayRef<int32_t>(numbers)));
  return build(builder, location, "stablehlo.constant", {}, mlir::TypeRange(type), value)->getResult(0);
}

mlir::DictionaryAttr local_config(mlir::DictionaryAttr config, const Problem& problem, const LocalProblem& local) {
  mlir::MLIRContext* context = config.getContext();
  mlir::NamedAttrList entries(config);
  const auto set = [&](const char* name, const std::string& text) {
    entries.set(name, mlir::StringAttr::get(context, text));
  };
  set("problem", print(local.problem));
  if (!local.firsts.empty()) {
    std::string names;
    for (const Capture& capture : problem.captures) {
      names += capture.name + " ";
    }
    for (const auto& [letter, name] : local.firsts) {
      names += name + " ";
    }
    names.pop_back();
    set("captures", names);
  }
  if (const auto gradients = config.getAs<mlir::StringAttr>("gradients")) {
    std::istringstream positions(gradients.str());
    std::string moved;
    for (size_t position = 0; positions >> position;) {
      position += position < 3 + problem.captures.size() ? 0 : local.firsts.size();
      moved += (moved.empty() ? "" : " ") + std::to_string(position);
    }
    set("gradients", moved);
  }
  return entries.getDictionary(context);
}

// The result of a manual computation. Several devices may contribute to it: for example, the gradient of keys that all
// heads share. Then each device returns its own term. An additional first dimension holds the terms, and the module
// sums over it, so that the partitioner can choose how to do so.
struct GivenResult {
  Sharding sharding;
  mlir::RankedTensorType type;
  llvm::SmallVector<int64_t> local_shape;
  bool is_sum = false;
};

GivenResult result_of(const Part& part, mlir::RankedTensorType type, const Split& split) {
  Axes axes;
  int64_t terms = 1;
  for (const SplitBy& by : split.by) {
    const auto& dims = part.sharding.dims;
    if (by.parts > 1 && std::find(dims.begin(), dims.end(), by.axes) == dims.end()) {
      axes.insert(axes.end(), by.axes.begin(), by.axes.end());
      terms *= by.parts;
    }
  }
  GivenResult result{part.sharding, type, part.shape, terms > 1};
  if (result.is_sum) {
    result.sharding.dims.insert(result.sharding.dims.begin(), axes);
    result.local_shape.insert(result.local_shape.begin(), 1);
    llvm::SmallVector<int64_t> sizes(type.getShape());
    sizes.insert(sizes.begin(), terms);
    result.type = type.clone(sizes);
  }
  return result;
}

// Sums in f32, like a device sums its own terms.
mlir::Value sum_of_terms(mlir::OpBuilder& builder, mlir::Location location, mlir::Value terms) {
  const mlir::Type type = mlir::cast<mlir::RankedTensorType>(terms.getType()).getElementType();
  return convert(builder, location, sum(builder, location, convert(builder, location, terms, builder.getF32Type()), 1),
                 type);
}

// Each key-value head several times, one after the other.
mlir::Value repeat_heads(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, const std::string& dims,
                         int64_t repeats) {
  OfOneHeadDimension merged(shape(value), dims);
  if (merged.at == std::string::npos) {
    return value;  // the heads share it
  }
  value = reshape(builder, location, value, merged.shape);
  value = repeat(builder, location, value, repeats);
  std::vector<int64_t> order(merged.shape.size() + 1);
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + 1, order.begin() + static_cast<std::ptrdiff_t>(merged.at) + 2);
  value = transpose(builder, location, value, order);
  merged.repeat(repeats);
  return reshape(builder, location, value, merged.shape);
}

// The gradient of heads that were repeated, in the shape that it would have without.
mlir::Value sum_repeated_heads(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value,
                               llvm::ArrayRef<int64_t> original, const std::string& dims, int64_t repeats) {
  const OfOneHeadDimension merged(original, dims);
  llvm::SmallVector<int64_t> digits(merged.shape);
  digits.insert(digits.begin() + static_cast<std::ptrdiff_t>(merged.at) + 1, repeats);
  std::vector<int64_t> order(digits.size());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(merged.at) + 1,
              order.begin() + static_cast<std::ptrdiff_t>(merged.at) + 2);
  value = transpose(builder, location, reshape(builder, location, value, digits), order);
  return reshape(builder, location, sum_of_terms(builder, location, value), original);
}

// Replaces a call by one with repeated key-value heads, in which the heads of each tensor are one dimension.
mlir::Operation* with_repeated_heads(mlir::Operation* call, Problem problem, const CallLetters& letters,
                                     int64_t repeats) {
  const auto config = mlir::cast<mlir::DictionaryAttr>(custom_call(call)->backend_config);
  mlir::OpBuilder builder(call);
  const mlir::Location location = call->getLoc();
  const auto is_key_or_value = [](size_t position) { return position == 1 || position == 2; };
  llvm::SmallVector<mlir::Value> operands;
  for (const auto [i, operand] : llvm::enumerate(call->getOperands())) {
    const std::string& dims = letters.operands[i];
    operands.push_back(is_key_or_value(i)
                           ? repeat_heads(builder, location, operand, dims, repeats)
                           : reshape(builder, location, operand, OfOneHeadDimension(shape(operand), dims).shape));
  }
  std::vector<bool> are_repeated(call->getNumResults());
  if (const auto gradients = config.getAs<mlir::StringAttr>("gradients")) {
    std::istringstream positions(gradients.str());
    size_t position = 0;
    for (size_t i = 0; positions >> position; ++i) {
      are_repeated[i] = is_key_or_value(position);
    }
  }
  llvm::SmallVector<mlir::Type> types;
  for (const auto [i, result] : llvm::enumerate(call->getResults())) {
    OfOneHeadDimension merged(shape(result), letters.results[i]);
    merged.repeat(are_repeated[i] ? repeats : 1);
    types.push_back(mlir::cast<mlir::RankedTensorType>(result.getType()).clone(merged.shape));
  }
  problem.kv_heads *= repeats;
  mlir::NamedAttrList entries;
  for (const mlir::NamedAttribute& entry : config) {
    std::string text = mlir::cast<mlir::StringAttr>(entry.getValue()).str();
    if (entry.getName().strref().ends_with("_dims")) {
      text = OfOneHeadDimension(llvm::SmallVector<int64_t>(text.size(), 1), text).dims;
    }
    entries.append(entry.getName(), builder.getStringAttr(entry.getName() == "problem" ? print(problem) : text));
  }
  mlir::Operation* now = fused_call(builder, location, custom_call(call)->target, operands, types,
                                    entries.getDictionary(call->getContext()));
  for (const auto [i, result] : llvm::enumerate(call->getResults())) {
    const mlir::Value value = now->getResult(static_cast<unsigned>(i));
    result.replaceAllUsesWith(
        are_repeated[i] ? sum_repeated_heads(builder, location, value, shape(result), letters.results[i], repeats)
                        : reshape(builder, location, value, shape(result)));
  }
  call->erase();
  return now;
}

std::string quoted(const Axes& axes) { return fmt::format("\"{}\"", fmt::join(axes, "\", \"")); }

std::string per_value(const std::vector<Sharding>& shardings) {
  std::string text;
  for (const Sharding& sharding : shardings) {
    text += (text.empty() ? "" : ", ") + print(sharding);
  }
  return "sharding_per_value<[" + text + "]>";
}

}  // namespace

llvm::SmallVector<int64_t> shape_of(const OperandView& view) {
  llvm::SmallVector<int64_t> before(view.reshape.empty() ? shape(view.source) : llvm::ArrayRef<int64_t>(view.reshape));
  before.insert(before.begin(), view.repeated.begin(), view.repeated.end());
  llvm::SmallVector<int64_t> after;
  for (const int64_t from : view.permutation) {
    after.push_back(before[static_cast<size_t>(from)]);
  }
  return view.permutation.empty() ? before : after;
}

Status check_split(const LiftedAttention& found, const Split& split) {
  if (found.problem.q_heads % split.parts('h') != 0) {
    return unsupported("it has {} that {} devices cannot share evenly", counted(found.problem.q_heads, "query head"),
                       split.parts('h'));
  }
  const int64_t repeats = repeats_of_heads(found.problem, split);
  const auto check = [&](const char* name, llvm::ArrayRef<int64_t> sizes, const std::string& letters,
                         bool is_repeated = false) -> Status {
    OfOneHeadDimension merged(sizes, letters);
    merged.repeat(is_repeated ? repeats : 1);
    FLASHLIFT_RETURN_IF_ERROR(repeats > 1 ? part_of(name, merged.shape, merged.dims, split)
                                          : part_of(name, sizes, letters, split));
    return {};
  };
  const auto check_problem = [&](Problem problem) -> Status {
    problem.kv_heads *= repeats;
    FLASHLIFT_RETURN_IF_ERROR(local_problem(problem, split));
    return {};
  };
  FLASHLIFT_RETURN_IF_ERROR(check("queries", shape_of(found.q), of_rows(found.q.dims)));
  FLASHLIFT_RETURN_IF_ERROR(check("keys", shape_of(found.k), found.k.dims, true));
  FLASHLIFT_RETURN_IF_ERROR(check("values", shape_of(found.v), found.v.dims, true));
  FLASHLIFT_RETURN_IF_ERROR(check("output", found.out.call_shape, of_rows(found.out.dims)));
  FLASHLIFT_RETURN_IF_ERROR(check_problem(found.problem));
  if (!found.gradient) {
    return {};
  }
  const LiftedGradient& gradient = *found.gradient;
  FLASHLIFT_RETURN_IF_ERROR(check("gradient", shape_of(gradient.d_out), of_rows(gradient.d_out.dims)));
  if (gradient.d_q) {
    FLASHLIFT_RETURN_IF_ERROR(check("gradient", gradient.d_q->call_shape, of_rows(gradient.d_q->dims)));
  }
  for (const auto* result : {&gradient.d_k, &gradient.d_v}) {
    if (*result) {
      FLASHLIFT_RETURN_IF_ERROR(check("gradient", (*result)->call_shape, (*result)->dims, true));
    }
  }
  return check_problem(gradient.problem);
}

Status split_call(mlir::Operation* call, const Split& split, const std::vector<MeshAxis>& manual) {
  const auto config = mlir::cast<mlir::DictionaryAttr>(custom_call(call)->backend_config);
  const auto line = config.getAs<mlir::StringAttr>("problem");
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(line ? line.str() : std::string()));
  const CaptureDims dims = capture_dims(problem, split);
  if (const int64_t repeats = repeats_of_heads(problem, split); repeats > 1) {
    FLASHLIFT_ASSIGN_OR_RETURN(const CallLetters letters, letters_of(call, config, problem, dims));
    return split_call(with_repeated_heads(call, problem, letters, repeats), split, manual);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const LocalProblem local, local_problem(problem, split));
  FLASHLIFT_ASSIGN_OR_RETURN(const CallLetters letters, letters_of(call, config, problem, dims));
  FLASHLIFT_ASSIGN_OR_RETURN(std::vector<Part> operands, parts_of(call->getOperands(), letters.operands, split));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<Part> results, parts_of(call->getResults(), letters.results, split));

  mlir::MLIRContext* context = call->getContext();
  const mlir::Location location = call->getLoc();
  mlir::OpBuilder builder(call);
  llvm::SmallVector<mlir::Value> values(call->getOperands());
  const size_t behind_captures = 3 + problem.captures.size();
  for (const auto [i, first] : llvm::enumerate(local.firsts)) {
    const size_t at = behind_captures + i;
    values.insert(values.begin() + at, numbers_of_firsts(builder, location, first.first, local.problem, split));
    operands.insert(operands.begin() + static_cast<std::ptrdiff_t>(at),
                    Part{{split.mesh, {split.of(first.first).axes}}, {1}});
  }
  mlir::OperationState state(location, "sdy.manual_computation");
  mlir::Block* body = &state.addRegion()->emplaceBlock();
  for (const mlir::Type type : types_of(values, operands)) {
    body->addArgument(type, location);
  }
  mlir::OpBuilder inside(context);
  inside.setInsertionPointToEnd(body);
  const std::string target(custom_call(call)->target);
  mlir::Operation* local_call = fused_call(inside, location, target, body->getArguments(),
                                           types_of(call->getResults(), results), local_config(config, problem, local));

  std::vector<GivenResult> given;
  for (const auto [part, value] : llvm::zip_equal(results, call->getResults())) {
    given.push_back(result_of(part, mlir::cast<mlir::RankedTensorType>(value.getType()), split));
  }
  llvm::SmallVector<mlir::Value> returned;
  std::vector<Sharding> in;
  std::vector<Sharding> out;
  for (const Part& part : operands) {
    in.push_back(part.sharding);
  }
  for (const auto [result, value] : llvm::zip_equal(given, local_call->getResults())) {
    returned.push_back(reshape(inside, location, value, result.local_shape));
    out.push_back(result.sharding);
    state.addTypes(result.type);
  }
  build(inside, location, "sdy.return", returned, {});

  // Axes that split nothing repeat the same work on each device, as before.
  Axes axes;
  for (const MeshAxis& axis : manual) {
    axes.push_back(axis.name);
  }
  const auto named = [&](const char* name, const std::string& text) {
    return mlir::NamedAttribute(builder.getStringAttr(name), sdy_attribute(context, text));
  };
  state.addOperands(values);
  state.propertiesAttr = builder.getDictionaryAttr({named("in_shardings", per_value(in)),
                                                    named("manual_axes", "manual_axes{" + quoted(axes) + "}"),
                                                    named("out_shardings", per_value(out))});
  mlir::Operation* computation = builder.create(state);
  for (auto [result, value, replaced] : llvm::zip_equal(given, computation->getResults(), call->getResults())) {
    replaced.replaceAllUsesWith(result.is_sum ? sum_of_terms(builder, location, value) : mlir::Value(value));
  }
  call->erase();
  return {};
}

}  // namespace flashlift::stablehlo
