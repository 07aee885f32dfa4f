#include "stablehlo/partition.h"

#include <algorithm>
#include <sstream>

#include "fmt/ranges.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using Axes = std::vector<std::string>;

constexpr size_t kFarthest = 20000;  // operations looked at on the way back from one value

// The text of one of Shardy's attributes; empty for any other.
std::string_view text_of(mlir::Attribute attribute) {
  const auto opaque = mlir::dyn_cast_or_null<mlir::OpaqueAttr>(attribute);
  const bool is_sdy = opaque && opaque.getDialectNamespace() == "sdy";
  return is_sdy ? std::string_view(opaque.getAttrData().data(), opaque.getAttrData().size()) : std::string_view();
}

mlir::Attribute sdy_attribute(mlir::MLIRContext* context, const std::string& text) {
  return mlir::OpaqueAttr::get(mlir::StringAttr::get(context, "sdy"), text, mlir::NoneType::get(context));
}

bool is_fused_call(mlir::Operation* op) {
  const auto call = custom_call(op);
  return call && (call->target == "flashlift.attention" || call->target == "flashlift.attention_backward");
}

int64_t partitions_of(Module& module) {
  const auto count = module.op()->getAttrOfType<mlir::IntegerAttr>("mhlo.num_partitions");
  return count ? count.getValue().getLimitedValue(INT32_MAX) : 1;
}

// --- How operations hand on what splits their operands ---

Sharding unsplit(const Sharding& like, size_t rank) { return {like.mesh, std::vector<Axes>(rank)}; }

// Digits of the same number go together: the axes stay with the most significant one.
Sharding through_reshape(const Sharding& from, llvm::ArrayRef<int64_t> source, llvm::ArrayRef<int64_t> target) {
  Sharding to = unsplit(from, target.size());
  size_t i = 0;
  size_t j = 0;
  while (i < source.size() && j < target.size()) {
    int64_t before = source[i];
    int64_t after = target[j];
    const size_t first = i;
    size_t major = j;
    while (after == 1 && before != 1 && major + 1 < target.size()) {
      after = target[++major];
    }
    j = major;
    while (before != after && (before < after ? i + 1 < source.size() : j + 1 < target.size())) {
      before < after ? before *= source[++i] : after *= target[++j];
    }
    const auto split = std::find_if(from.dims.begin() + static_cast<std::ptrdiff_t>(first),
                                    from.dims.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                    [](const Axes& axes) { return !axes.empty(); });
    const bool is_major = std::all_of(source.begin() + first, source.begin() + (split - from.dims.begin()),
                                      [](int64_t size) { return size == 1; });
    if (split != from.dims.begin() + static_cast<std::ptrdiff_t>(i) + 1 && is_major) {
      to.dims[major] = *split;
    }
    ++i;
    ++j;
  }
  return to;
}

Sharding through_transpose(mlir::Operation* op, const Sharding& from) {
  Sharding to = unsplit(from, from.dims.size());
  for (const auto [i, dim] : llvm::enumerate(permutation(op))) {
    to.dims[i] = from.dims[static_cast<size_t>(dim)];
  }
  return to;
}

Sharding through_broadcast(mlir::Operation* op, const Sharding& from) {
  const auto sizes = shape(op->getResult(0));
  Sharding to = unsplit(from, sizes.size());
  for (const auto [i, dim] : llvm::enumerate(broadcast_dims(op))) {
    if (shape(op->getOperand(0))[i] == sizes[static_cast<size_t>(dim)]) {
      to.dims[static_cast<size_t>(dim)] = from.dims[i];
    }
  }
  return to;
}

std::optional<Sharding> through_product(mlir::Operation* op, const std::optional<Sharding>& left,
                                        const std::optional<Sharding>& right) {
  const auto dims = dot_dims(op);
  if (!dims || (!left && !right)) {
    return std::nullopt;
  }
  Sharding to = unsplit(left ? *left : *right, 0);
  const auto add_free = [&](unsigned operand, const std::optional<Sharding>& from, const std::vector<int64_t>& batch,
                            const std::vector<int64_t>& summed) {
    for (size_t i = 0; i < shape(op->getOperand(operand)).size(); ++i) {
      const auto dim = static_cast<int64_t>(i);
      if (std::find(batch.begin(), batch.end(), dim) == batch.end() &&
          std::find(summed.begin(), summed.end(), dim) == summed.end()) {
        to.dims.push_back(from ? from->dims[i] : Axes());
      }
    }
  };
  for (size_t i = 0; i < dims->lhs_batch.size(); ++i) {
    const Axes of_left = left ? left->dims[static_cast<size_t>(dims->lhs_batch[i])] : Axes();
    const Axes of_right = right ? right->dims[static_cast<size_t>(dims->rhs_batch[i])] : Axes();
    to.dims.push_back(of_left.empty() ? of_right : of_left);
  }
  add_free(0, left, dims->lhs_batch, dims->lhs_contract);
  add_free(1, right, dims->rhs_batch, dims->rhs_contract);
  return to;
}

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

llvm::SmallVector<int64_t> shape_of(const OperandView& view) {
  llvm::SmallVector<int64_t> before(view.reshape.empty() ? shape(view.source) : llvm::ArrayRef<int64_t>(view.reshape));
  llvm::SmallVector<int64_t> after;
  for (const int64_t from : view.permutation) {
    after.push_back(before[static_cast<size_t>(from)]);
  }
  return view.permutation.empty() ? before : after;
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
struct Parts {
  std::string shardings;
  llvm::SmallVector<mlir::Type> types;
};

Result<Parts> parts_of(mlir::ValueRange values, const std::vector<std::string>& letters, const Split& split) {
  Parts parts;
  for (const auto [i, value] : llvm::enumerate(values)) {
    const auto type = mlir::cast<mlir::RankedTensorType>(value.getType());
    FLASHLIFT_ASSIGN_OR_RETURN(const Part part, part_of("a tensor", type.getShape(), letters[i], split));
    parts.shardings += (i == 0 ? "" : ", ") + print(part.sharding);
    parts.types.push_back(mlir::RankedTensorType::get(part.shape, type.getElementType()));
  }
  return parts;
}

std::string with_devices(const Axes& axes) { return fmt::format("\"{}\"", fmt::join(axes, "\", \"")); }

}  // namespace

Partitioner::Partitioner(Module& module, const Annotations& annotations, int64_t partitions)
    : annotations_(annotations), partitions_(std::max(partitions, partitions_of(module))) {
  module.op()->walk([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kSdyMesh) {
      const auto name = op->getAttrOfType<mlir::StringAttr>("sym_name");
      const auto mesh = parse_mesh(text_of(op->getAttr("mesh")));
      if (name && mesh) {
        meshes_[name.str()] = *mesh;
      }
    } else if (is_fused_call(op)) {
      others_.insert(op);
    }
  });
}

bool Partitioner::is_local(mlir::Operation* op) const {
  if (partitions_ == 1) {
    return true;
  }
  for (mlir::Operation* parent = op->getParentOp(); parent != nullptr; parent = parent->getParentOp()) {
    if (kind(parent) != OpKind::kSdyManualComputation) {
      continue;
    }
    auto shardings = parse_shardings(text_of(parent->getAttr("in_shardings")));
    if (shardings.empty()) {
      shardings = parse_shardings(text_of(parent->getAttr("out_shardings")));
    }
    const auto mesh = shardings.empty() ? meshes_.end() : meshes_.find(shardings.front().mesh);
    const Axes manual = parse_manual_axes(text_of(parent->getAttr("manual_axes")));
    return mesh != meshes_.end() && std::all_of(mesh->second.begin(), mesh->second.end(), [&](const MeshAxis& axis) {
             return axis.size == 1 || std::find(manual.begin(), manual.end(), axis.name) != manual.end();
           });
  }
  // GSPMD has no region for this: all that is computed from shards is.
  bool has_shards = false;
  llvm::DenseSet<mlir::Operation*> seen;
  llvm::SmallVector<mlir::Operation*> pending = {op};
  while (!pending.empty() && seen.size() < kFarthest) {
    mlir::Operation* each = pending.pop_back_val();
    if (!seen.insert(each).second) {
      continue;
    }
    if (is_full_to_shard_call(each)) {
      const auto sharding = each->getAttrOfType<mlir::StringAttr>("mhlo.sharding");
      if (!sharding || sharding.getValue() != "{manual}") {
        return false;
      }
      has_shards = true;
      continue;
    }
    for (mlir::Value operand : each->getOperands()) {
      mlir::Operation* from = operand.getDefiningOp();
      if (from == nullptr) {  // what a region is given
        from = operand.getParentBlock()->getParentOp();
        if (from == nullptr || mlir::isa<mlir::func::FuncOp>(from)) {
          return false;
        }
      }
      pending.push_back(from);
    }
  }
  return has_shards && pending.empty();
}

int64_t Partitioner::parts(const std::string& mesh, const Axes& axes) const {
  int64_t count = 1;
  const auto found = meshes_.find(mesh);
  for (const std::string& axis : axes) {
    const auto at = std::find_if(found->second.begin(), found->second.end(),
                                 [&](const MeshAxis& each) { return each.name == axis; });
    if (at != found->second.end() && __builtin_mul_overflow(count, at->size, &count)) {
      return INT64_MAX;  // more than any operand has
    }
  }
  return count;
}

std::optional<Sharding> Partitioner::sharding_of(mlir::Value value, int depth) {
  constexpr int kDeepest = 2000;
  if (depth > kDeepest || found_.size() > kFarthest) {
    return std::nullopt;
  }
  const auto tensor = static_tensor(value);
  if (!tensor) {
    return std::nullopt;
  }
  if (const auto known = found_.find(value); known != found_.end()) {
    return known->second;
  }
  found_[value] = std::nullopt;  // where a loop comes back
  auto sharding = find_sharding(value, depth + 1);
  if (sharding &&
      (sharding->dims.size() != static_cast<size_t>(tensor.getRank()) || !meshes_.contains(sharding->mesh))) {
    sharding.reset();
  }
  found_[value] = sharding;
  return sharding;
}

std::optional<Sharding> Partitioner::find_sharding(mlir::Value value, int depth) {
  if (const mlir::Attribute said = annotations_.of(value)) {
    return parse_sharding(text_of(said));
  }
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr) {
    const auto argument = mlir::cast<mlir::BlockArgument>(value);
    const unsigned number = argument.getArgNumber();
    mlir::Operation* parent = argument.getOwner()->getParentOp();
    if (auto function = mlir::dyn_cast_or_null<mlir::func::FuncOp>(parent)) {
      return parse_sharding(text_of(function.getArgAttr(number, "sdy.sharding")));
    }
    const bool is_loop = parent != nullptr && kind(parent) == OpKind::kWhile && number < parent->getNumOperands();
    return is_loop ? sharding_of(parent->getOperand(number), depth) : std::nullopt;
  }
  const unsigned number = mlir::cast<mlir::OpResult>(value).getResultNumber();
  const auto of_operand = [&](unsigned i) { return sharding_of(op->getOperand(i), depth); };
  switch (kind(op)) {
    case OpKind::kSdyShardingConstraint:
    case OpKind::kSdyReshard:
      return parse_sharding(text_of(op->getAttr("sharding")));
    case OpKind::kSdyManualComputation: {
      const auto shardings = parse_shardings(text_of(op->getAttr("out_shardings")));
      return number < shardings.size() ? std::optional(shardings[number]) : std::nullopt;
    }
    case OpKind::kWhile:
    case OpKind::kOptimizationBarrier:
      return number < op->getNumOperands() ? of_operand(number) : std::nullopt;
    case OpKind::kTranspose: {
      const auto from = of_operand(0);
      return from ? std::optional(through_transpose(op, *from)) : std::nullopt;
    }
    case OpKind::kReshape: {
      const auto from = of_operand(0);
      return from ? std::optional(through_reshape(*from, shape(op->getOperand(0)), shape(value))) : std::nullopt;
    }
    case OpKind::kBroadcastInDim: {
      const auto from = of_operand(0);
      return from ? std::optional(through_broadcast(op, *from)) : std::nullopt;
    }
    case OpKind::kSlice:
    case OpKind::kConcatenate:
    case OpKind::kDynamicUpdateSlice: {
      auto from = of_operand(0);
      for (size_t i = 0; from && i < from->dims.size(); ++i) {
        if (shape(op->getOperand(0))[i] != shape(value)[i]) {
          from->dims[i].clear();
        }
      }
      return from;
    }
    case OpKind::kDotGeneral:
      return through_product(op, of_operand(0), of_operand(1));
    default: {
      if (!is_elementwise(op)) {
        return std::nullopt;
      }
      std::optional<Sharding> first;
      for (unsigned i = 0; i < op->getNumOperands() && !(first && first->splits()); ++i) {
        const auto from = of_operand(i);
        first = from && (!first || from->splits()) ? from : first;
      }
      return first;
    }
  }
}

std::optional<Sharding> Partitioner::of_view(const OperandView& view) {
  auto sharding = view.source ? sharding_of(view.source) : std::nullopt;
  if (sharding && !view.reshape.empty()) {
    sharding = through_reshape(*sharding, shape(view.source), view.reshape);
  }
  if (sharding && !view.permutation.empty()) {
    const Sharding before = *sharding;
    for (size_t i = 0; i < view.permutation.size(); ++i) {
      sharding->dims[i] = before.dims[static_cast<size_t>(view.permutation[i])];
    }
  }
  return sharding;
}

Result<Split> Partitioner::plan(const LiftedAttention& found) {
  if (is_local(found.second_product)) {
    return Split();
  }
  for (mlir::Operation* op = found.second_product->getParentOp(); op != nullptr; op = op->getParentOp()) {
    if (kind(op) == OpKind::kSdyManualComputation) {
      return unsupported("it stands in a manual computation that leaves some of the mesh's axes to the partitioner");
    }
  }
  if (meshes_.empty()) {
    return unsupported(
        "the module is compiled for {} partitions, and XLA cannot split a custom call; use Shardy and say with "
        "sharding constraints how queries, keys and values are split, or call the attention within shard_map",
        partitions_);
  }
  found_.clear();  // of operations that may be gone
  Split split;
  const std::pair<const char*, const OperandView*> views[] = {
      {"queries", &found.q}, {"keys", &found.k}, {"values", &found.v}};
  for (const auto& [name, view] : views) {
    const auto sharding = of_view(*view);
    if (!sharding || sharding->dims.size() != view->dims.size()) {
      continue;
    }
    std::string seen;
    for (size_t i = 0; i < view->dims.size(); ++i) {
      const Axes& axes = sharding->dims[i];
      const char letter = view->dims[i];
      const bool is_major = seen.find(letter) == std::string::npos;
      seen += shape_of(*view)[i] == 1 ? '1' : letter;
      if (axes.empty() || parts(sharding->mesh, axes) == 1) {
        continue;
      }
      if (letter == 's' || letter == 'd') {
        return unsupported("its {} are split along their {} over the axes {}; a call needs whole sequences and heads",
                           name, letter == 's' ? "sequence" : "depth", with_devices(axes));
      }
      Axes& known = letter == 'b' ? split.batch_axes : split.head_axes;
      if (is_major && known.empty() && (split.mesh.empty() || split.mesh == sharding->mesh)) {
        split.mesh = sharding->mesh;
        known = axes;
      }
    }
  }
  if (split.mesh.empty()) {
    return unsupported(
        "the module is compiled for {} partitions, and does not say that its queries, keys or values are split by "
        "batches or heads; add sharding constraints to them",
        partitions_);
  }
  split.batch_parts = parts(split.mesh, split.batch_axes);
  split.head_parts = parts(split.mesh, split.head_axes);
  for (const std::string& axis : split.batch_axes) {
    if (std::find(split.head_axes.begin(), split.head_axes.end(), axis) != split.head_axes.end()) {
      return unsupported("the axis \"{}\" splits batches of one operand and heads of another", axis);
    }
  }
  const Problem& problem = found.problem;
  if (problem.kv_heads != 1 && problem.kv_heads % split.head_parts != 0) {
    return unsupported("its {} key-value heads cannot be shared evenly by {} devices", problem.kv_heads,
                       split.head_parts);
  }
  for (const auto& [name, view] : views) {
    FLASHLIFT_RETURN_IF_ERROR(part_of(name, shape_of(*view), view->dims, split));
  }
  FLASHLIFT_RETURN_IF_ERROR(part_of("output", found.out.call_shape, found.out.dims, split));
  FLASHLIFT_RETURN_IF_ERROR(capture_dims(problem, split));
  if (found.gradient) {
    FLASHLIFT_RETURN_IF_ERROR(part_of("gradient", shape_of(found.gradient->d_out), found.gradient->d_out.dims, split));
    FLASHLIFT_ASSIGN_OR_RETURN(const CaptureDims dims, capture_dims(found.gradient->problem, split));
    for (const CaptureGradient& by : found.gradient->d_captures) {
      const std::string& letters = dims.at(by.capture);
      if ((split.batch_parts > 1 && letters.find('b') == std::string::npos) ||
          (split.head_parts > 1 && letters.find('h') == std::string::npos)) {
        return unsupported("the gradient by a tensor that its score reads is a sum over several devices");
      }
    }
    if ((!found.gradient->d_sinks.empty() && split.batch_parts > 1) ||
        (problem.kv_heads == 1 && split.head_parts > 1 && (found.gradient->d_k || found.gradient->d_v))) {
      return unsupported("a gradient is a sum over several devices");
    }
  }
  return split;
}

Status Partitioner::apply(const Split& split, mlir::Block& block) {
  if (split.is_none()) {
    return {};
  }
  llvm::SmallVector<mlir::Operation*> calls;
  for (mlir::Operation& op : block) {
    if (is_fused_call(&op) && !others_.contains(&op)) {
      calls.push_back(&op);
    }
  }
  for (mlir::Operation* call : calls) {
    FLASHLIFT_RETURN_IF_ERROR(apply(split, call));
  }
  return {};
}

Status Partitioner::apply(const Split& split, mlir::Operation* call) {
  const auto config = mlir::cast<mlir::DictionaryAttr>(custom_call(call)->backend_config);
  const auto line = config.getAs<mlir::StringAttr>("problem");
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(line ? line.str() : std::string()));
  FLASHLIFT_ASSIGN_OR_RETURN(const CaptureDims dims, capture_dims(problem, split));
  FLASHLIFT_ASSIGN_OR_RETURN(const CallLetters letters, letters_of(call, config, problem, dims));
  FLASHLIFT_ASSIGN_OR_RETURN(const Parts operands, parts_of(call->getOperands(), letters.operands, split));
  FLASHLIFT_ASSIGN_OR_RETURN(const Parts results, parts_of(call->getResults(), letters.results, split));

  // All axes are manual: those that split nothing repeat the same work on each device, as they did before.
  Axes axes;
  for (const MeshAxis& axis : meshes_.find(split.mesh)->second) {
    axes.push_back(axis.name);
  }
  mlir::MLIRContext* context = call->getContext();
  const mlir::Location location = call->getLoc();
  mlir::OpBuilder builder(call);
  const auto named = [&](const char* name, const std::string& text) {
    return mlir::NamedAttribute(builder.getStringAttr(name), sdy_attribute(context, text));
  };
  mlir::OperationState state(location, "sdy.manual_computation");
  state.addOperands(call->getOperands());
  state.addTypes(call->getResultTypes());
  state.propertiesAttr =
      builder.getDictionaryAttr({named("in_shardings", "sharding_per_value<[" + operands.shardings + "]>"),
                                 named("manual_axes", "manual_axes{" + with_devices(axes) + "}"),
                                 named("out_shardings", "sharding_per_value<[" + results.shardings + "]>")});
  mlir::Block* body = &state.addRegion()->emplaceBlock();
  for (const mlir::Type type : operands.types) {
    body->addArgument(type, location);
  }
  mlir::OpBuilder inside(context);
  inside.setInsertionPointToEnd(body);
  mlir::NamedAttrList local_config(config);
  local_config.set("problem", builder.getStringAttr(print(local_problem(problem, split, dims))));
  const std::string target(custom_call(call)->target);
  mlir::Operation* local_call =
      fused_call(inside, location, target, body->getArguments(), results.types, local_config.getDictionary(context));
  build(inside, location, "sdy.return", local_call->getResults(), {});
  mlir::Operation* split_call = builder.create(state);
  call->replaceAllUsesWith(split_call->getResults());
  call->erase();
  return {};
}

}  // namespace flashlift::stablehlo
