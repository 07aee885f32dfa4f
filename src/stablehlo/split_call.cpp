#include "stablehlo/split_call.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "fmt/ranges.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using Axes = std::vector<std::string>;

// --- Which batches and heads a program reads ---

// For each captured tensor the letter of each dimension: 'b' and 'h' where loads index it by the batch or the head and
// by nothing else, '1' for all others.
using CaptureDims = std::map<std::string, std::string>;

Status read_loads(const Program& program, const Problem& problem, const Split& split, CaptureDims& dims) {
  const auto letter_of = [&](ValueId id) {
    const Op op = program.nodes[id].op;
    return op == Op::k_b && split.batch_parts > 1 ? 'b' : op == Op::k_h && split.head_parts > 1 ? 'h' : '1';
  };
  const auto other_use = [](char letter) {
    return unsupported("its score or mask reads the number of the {}, which each device would count from 0",
                       letter == 'b' ? "batch" : "head");
  };
  for (const Node& node : program.nodes) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const char letter = letter_of(node.operands[i]);
      if (node.op != Op::k_load) {
        if (letter != '1') {
          return other_use(letter);
        }
        continue;
      }
      const Capture& capture = program.captures[static_cast<size_t>(node.payload)];
      std::string& known = dims.try_emplace(capture.name, capture.shape.size(), '?').first->second;
      const int64_t size = capture.shape[i];
      const char wanted = size == 1 ? '1' : letter;
      if (letter != '1' && size != 1 && size != (letter == 'b' ? problem.batch : problem.q_heads)) {
        return other_use(letter);
      }
      if (known[i] != '?' && known[i] != wanted) {
        return unsupported("its score reads one tensor at the same and at other batches or heads");
      }
      known[i] = wanted;
    }
  }
  if (!program.nodes.empty() && letter_of(program.result) != '1') {
    return other_use(letter_of(program.result));
  }
  return {};
}

Result<CaptureDims> capture_dims(const Problem& problem, const Split& split) {
  CaptureDims dims;
  for (const auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (*program) {
      FLASHLIFT_RETURN_IF_ERROR(read_loads(**program, problem, split, dims));
    }
  }
  for (const Capture& capture : problem.captures) {
    std::string& letters = dims.try_emplace(capture.name, capture.shape.size(), '1').first->second;
    std::replace(letters.begin(), letters.end(), '?', '1');
  }
  return dims;
}

// --- Parts of tensors ---

struct Part {
  Sharding sharding;
  llvm::SmallVector<int64_t> shape;  // of one device's part
};

Result<Part> part_of(const std::string& name, llvm::ArrayRef<int64_t> shape, const std::string& letters,
                     const Split& split) {
  Part part{{split.mesh, std::vector<Axes>(shape.size())}, llvm::SmallVector<int64_t>(shape)};
  for (const auto& [letter, axes, parts] :
       {std::tuple('b', &split.batch_axes, split.batch_parts), std::tuple('h', &split.head_axes, split.head_parts)}) {
    for (size_t i = 0; i < shape.size() && parts > 1; ++i) {
      if (letters[i] != letter || shape[i] == 1) {
        continue;
      }
      if (shape[i] % parts != 0) {
        return unsupported("{} has {} {} that {} devices cannot share evenly", name, shape[i],
                           letter == 'b' ? "batches" : "heads", parts);
      }
      part.sharding.dims[i] = *axes;
      part.shape[i] /= parts;
      break;  // the most significant digit
    }
  }
  return part;
}
// One device's problem.
Problem local_problem(Problem problem, const Split& split, const CaptureDims& dims) {
  const auto shrink = [&](Capture& capture) {
    const std::string& letters = dims.at(capture.name);
    for (size_t i = 0; i < letters.size(); ++i) {
      capture.shape[i] /= letters[i] == 'b' ? split.batch_parts : letters[i] == 'h' ? split.head_parts : 1;
    }
  };
  for (auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (*program) {
      std::for_each((*program)->captures.begin(), (*program)->captures.end(), shrink);
    }
  }
  std::for_each(problem.captures.begin(), problem.captures.end(), shrink);
  problem.batch /= split.batch_parts;
  problem.q_heads /= split.head_parts;
  problem.kv_heads = problem.kv_heads == 1 ? 1 : problem.kv_heads / split.head_parts;
  return problem;
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
  CallLetters letters{.operands = {word("q_dims"), word("k_dims"), word("v_dims")}, .results = {}};
  for (const Capture& capture : problem.captures) {
    letters.operands.push_back(captures.at(capture.name));
  }
  if (problem.sinks > 0) {
    letters.operands.emplace_back("h1");
  }
  if (problem.keep_mask) {
    letters.operands.emplace_back("bh11");
  }
  std::vector<std::string> outputs = {word("out_dims")};
  std::vector<std::string> their_gradients = {gradient_word("d_out_dims", "out_dims")};
  if (problem.want_lse) {
    outputs.push_back(word("lse_dims"));
    their_gradients.push_back(gradient_word("d_lse_dims", "lse_dims"));
  }
  if (custom_call(call)->target == "flashlift.attention") {
    letters.results = outputs;
  } else {
    std::vector<std::string> gradients = letters.operands;
    gradients[0] = gradient_word("d_q_dims", "q_dims");
    gradients[1] = gradient_word("d_k_dims", "k_dims");
    gradients[2] = gradient_word("d_v_dims", "v_dims");
    std::istringstream positions(word("gradients"));
    for (size_t position = 0; positions >> position;) {
      if (position >= gradients.size()) {
        return internal_error("a backward call asks for the gradient by operand {}", position);
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

// What one device holds of each of a call's operands or results.
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

// What a manual computation gives for a result of the call. Batches or heads of several devices may add to it, as to
// the gradient by keys that all heads share: then each device gives its own term of the sum. The terms stand side by
// side in a dimension in front, over which the module sums; the partitioner makes what suits it of that.
struct GivenResult {
  Sharding sharding;
  mlir::RankedTensorType type;
  llvm::SmallVector<int64_t> local_shape;
  bool is_sum = false;
};

GivenResult result_of(const Part& part, mlir::RankedTensorType type, const Split& split) {
  Axes axes;
  int64_t terms = 1;
  for (const auto& [axes_of_letter, parts] :
       {std::pair(&split.batch_axes, split.batch_parts), {&split.head_axes, split.head_parts}}) {
    const auto& dims = part.sharding.dims;
    if (parts > 1 && std::find(dims.begin(), dims.end(), *axes_of_letter) == dims.end()) {
      axes.insert(axes.end(), axes_of_letter->begin(), axes_of_letter->end());
      terms *= parts;
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

// In f32, as a device sums its own terms.
mlir::Value sum_of_terms(mlir::OpBuilder& builder, mlir::Location location, mlir::Value terms) {
  const mlir::Type type = mlir::cast<mlir::RankedTensorType>(terms.getType()).getElementType();
  return convert(builder, location, sum(builder, location, convert(builder, location, terms, builder.getF32Type()), 1),
                 type);
}

std::string quoted(const Axes& axes) { return fmt::format("\"{}\"", fmt::join(axes, "\", \"")); }

std::string per_value(const std::vector<Sharding>& shardings) {
  std::string text;
  for (const Sharding& sharding : shardings) {
    text += (text.empty() ? "" : ", ") + print(sharding);
  }
  return "sharding_per_value<[" + text + "]>";
}

mlir::Attribute sdy_attribute(mlir::MLIRContext* context, const std::string& text) {
  return mlir::OpaqueAttr::get(mlir::StringAttr::get(context, "sdy"), text, mlir::NoneType::get(context));
}

}  // namespace

llvm::SmallVector<int64_t> shape_of(const OperandView& view) {
  llvm::SmallVector<int64_t> before(view.reshape.empty() ? shape(view.source) : llvm::ArrayRef<int64_t>(view.reshape));
  llvm::SmallVector<int64_t> after;
  for (const int64_t from : view.permutation) {
    after.push_back(before[static_cast<size_t>(from)]);
  }
  return view.permutation.empty() ? before : after;
}

Status check_split(const LiftedAttention& found, const Split& split) {
  const Problem& problem = found.problem;
  if (problem.kv_heads != 1 && problem.kv_heads % split.head_parts != 0) {
    return unsupported("its {} key-value heads cannot be shared evenly by {} devices", problem.kv_heads,
                       split.head_parts);
  }
  for (const auto& [name, view] : {std::pair("queries", &found.q), {"keys", &found.k}, {"values", &found.v}}) {
    FLASHLIFT_RETURN_IF_ERROR(part_of(name, shape_of(*view), view->dims, split));
  }
  FLASHLIFT_RETURN_IF_ERROR(part_of("output", found.out.call_shape, found.out.dims, split));
  FLASHLIFT_RETURN_IF_ERROR(capture_dims(problem, split));
  if (found.gradient) {
    FLASHLIFT_RETURN_IF_ERROR(part_of("gradient", shape_of(found.gradient->d_out), found.gradient->d_out.dims, split));
    FLASHLIFT_RETURN_IF_ERROR(capture_dims(found.gradient->problem, split));
    for (const auto* result : {&found.gradient->d_q, &found.gradient->d_k, &found.gradient->d_v}) {
      if (*result) {
        FLASHLIFT_RETURN_IF_ERROR(part_of("gradient", (*result)->call_shape, (*result)->dims, split));
      }
    }
  }
  return {};
}

Status split_call(mlir::Operation* call, const Split& split, const std::vector<MeshAxis>& mesh) {
  const auto config = mlir::cast<mlir::DictionaryAttr>(custom_call(call)->backend_config);
  const auto line = config.getAs<mlir::StringAttr>("problem");
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(line ? line.str() : std::string()));
  FLASHLIFT_ASSIGN_OR_RETURN(const CaptureDims dims, capture_dims(problem, split));
  FLASHLIFT_ASSIGN_OR_RETURN(const CallLetters letters, letters_of(call, config, problem, dims));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<Part> operands, parts_of(call->getOperands(), letters.operands, split));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<Part> results, parts_of(call->getResults(), letters.results, split));

  mlir::MLIRContext* context = call->getContext();
  const mlir::Location location = call->getLoc();
  mlir::OperationState state(location, "sdy.manual_computation");
  mlir::Block* body = &state.addRegion()->emplaceBlock();
  for (const mlir::Type type : types_of(call->getOperands(), operands)) {
    body->addArgument(type, location);
  }
  mlir::OpBuilder inside(context);
  inside.setInsertionPointToEnd(body);
  mlir::NamedAttrList local_config(config);
  local_config.set("problem", inside.getStringAttr(print(local_problem(problem, split, dims))));
  const std::string target(custom_call(call)->target);
  mlir::Operation* local_call = fused_call(inside, location, target, body->getArguments(),
                                           types_of(call->getResults(), results), local_config.getDictionary(context));

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

  // All axes are manual: those that split nothing repeat the same work on each device, as they did before.
  Axes axes;
  for (const MeshAxis& axis : mesh) {
    axes.push_back(axis.name);
  }
  mlir::OpBuilder builder(call);
  const auto named = [&](const char* name, const std::string& text) {
    return mlir::NamedAttribute(builder.getStringAttr(name), sdy_attribute(context, text));
  };
  state.addOperands(call->getOperands());
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
