#include "stablehlo/lift/layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "mlir/IR/TypeUtilities.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

std::vector<int64_t> shape_vector(mlir::Value value) {
  const auto dims = shape(value);
  return {dims.begin(), dims.end()};
}

bool is_half(std::optional<DType> type) { return type == DType::kBF16 || type == DType::kF16; }

// Whether the conversion is one of those that are passed through: from 16 bits to f32, or to the same type. A value
// that was rounded to 16 bits and converted back counts as f32 as a rule, because the module computes with it in f32.
bool is_passed_through(mlir::Operation* op, Conversions passed) {
  if (kind(op) != OpKind::kConvert || passed == Conversions::kNone) {
    return false;
  }
  const auto from = dtype(op->getOperand(0).getType());
  const auto to = dtype(op->getResult(0).getType());
  mlir::Operation* before = defining(op->getOperand(0), OpKind::kConvert);
  const bool was_rounded = before != nullptr && dtype(before->getOperand(0).getType()) != from;
  return (is_half(from) && to == DType::kF32 && (!was_rounded || passed == Conversions::kOfRounded)) ||
         (from && from == to);
}

std::optional<double> exact_number_of(mlir::Value value, int depth);

std::optional<double> number_within(mlir::Value value, int depth) {
  const auto number = exact_number_of(value, depth);
  const mlir::Type type = mlir::getElementTypeOrSelf(value);
  return number ? converted(*number, type, type) : std::nullopt;
}

// Whether exact_number_of() computes the operation's number from those of its operands.
bool computes_number(OpKind kind) {
  switch (kind) {
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kConvert:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kPower:
    case OpKind::kMultiply:
    case OpKind::kDivide:
      return true;
    default:
      return false;
  }
}

// The number before the last operation rounds it. Operands are read only as long as there may be a number: in a deep
// model, a value is computed along many paths.
std::optional<double> exact_number_of(mlir::Value value, int depth) {
  if (const auto number = splat(value)) {
    return number;
  }
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr || depth == 0 || !computes_number(kind(op))) {
    return std::nullopt;
  }
  const auto x = number_within(op->getOperand(0), depth - 1);
  const auto y = x && op->getNumOperands() > 1 ? number_within(op->getOperand(1), depth - 1) : std::optional(0.0);
  if (!x || !y) {
    return std::nullopt;
  }
  switch (kind(op)) {
    case OpKind::kSqrt:
      return std::sqrt(*x);
    case OpKind::kRsqrt:
      return 1.0 / std::sqrt(*x);
    case OpKind::kPower:
      return std::pow(*x, *y);
    case OpKind::kMultiply:
      return *x * *y;
    case OpKind::kDivide:
      return *x / *y;
    default:
      return x;
  }
}

}  // namespace

std::optional<double> number_of(mlir::Value value) {
  constexpr int kMostSteps = 8;
  return number_within(value, kMostSteps);
}

namespace {

// The other operand of a multiplication or division by a constant, or null.
mlir::Value scaled_operand(mlir::Operation* op, float& factor) {
  if (kind(op) == OpKind::kMultiply) {
    for (unsigned side = 0; side < 2; ++side) {
      if (const auto number = number_of(op->getOperand(1 - side))) {
        factor = static_cast<float>(*number);
        return op->getOperand(side);
      }
    }
  }
  if (kind(op) == OpKind::kDivide) {
    if (const auto number = number_of(op->getOperand(1)); number && *number != 0) {
      factor = static_cast<float>(1.0 / *number);
      return op->getOperand(0);
    }
  }
  return nullptr;
}

struct Step {
  mlir::Value value;  // null at the end
  std::vector<Affine> indices;
  float scale = 1.0f;
  SplitRequest split;
};

Step step_back(mlir::Value value, const std::vector<Affine>& indices, const std::vector<int64_t>& sizes,
               Conversions passed) {
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr || op->getNumOperands() == 0 || !static_tensor(op->getOperand(0))) {
    return {};
  }
  const mlir::Value operand = op->getOperand(0);
  if (const mlir::Value same = same_number(value)) {
    return {.value = same, .indices = indices};
  }
  switch (kind(op)) {
    case OpKind::kTranspose: {
      Step step{.value = operand, .indices = std::vector<Affine>(indices.size())};
      const auto order = permutation(op);
      for (size_t i = 0; i < indices.size(); ++i) {
        step.indices[static_cast<size_t>(order[i])] = indices[i];
      }
      return step;
    }
    case OpKind::kReshape: {
      const Delinearized split = delinearize(linearize(indices, shape_vector(value)), shape_vector(operand), sizes);
      if (!split.indices) {
        return {.value = nullptr, .indices = {}, .scale = 1.0f, .split = split.request};
      }
      return {.value = operand, .indices = *split.indices};
    }
    case OpKind::kBroadcastInDim: {
      const auto dims = broadcast_dims(op);
      Step step{.value = operand, .indices = {}};
      for (size_t i = 0; i < dims.size(); ++i) {
        step.indices.push_back(shape(operand)[i] == 1 ? Affine{} : indices[static_cast<size_t>(dims[i])]);
      }
      return step;
    }
    case OpKind::kConvert:
      if (!is_passed_through(op, passed)) {
        return {};
      }
      return {.value = operand, .indices = indices};
    default: {
      float factor = 1.0f;
      const mlir::Value scaled = scaled_operand(op, factor);
      if (!scaled || static_tensor(scaled).getShape() != static_tensor(value).getShape()) {
        return {};
      }
      return {.value = scaled, .indices = indices, .scale = factor};
    }
  }
}

char letter_of(int atom, const Roles& roles, const std::vector<int>& depth) {
  const auto in = [&](const std::vector<int>& atoms) {
    return std::find(atoms.begin(), atoms.end(), atom) != atoms.end();
  };
  if (atom == kKeyAtom || in(roles.key) || in(roles.query)) {
    return 's';
  }
  if (in(roles.batch)) {
    return 'b';
  }
  if (in(roles.kv_head) || in(roles.group)) {
    return 'h';
  }
  return in(depth) ? 'd' : '?';
}

// The atoms of a letter in their logical order.
std::vector<int> logical_order(char letter, const Roles& roles, const std::vector<int>& depth) {
  switch (letter) {
    case 'b':
      return roles.batch;
    case 'h':
      return roles.heads();
    case 's': {  // no tensor has both queries and keys
      std::vector<int> sequence = roles.query;
      sequence.insert(sequence.end(), roles.key.begin(), roles.key.end());
      return sequence;
    }
    default:
      return depth;
  }
}

struct Letters {
  std::vector<int> atoms;  // -1 for a dimension of size 1
  std::vector<int64_t> shape;
  std::string text;
  bool is_one_digit_each = true;
};

Outcome<Letters> letters_of(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                            const std::vector<int64_t>& sizes) {
  Letters letters;
  for (const std::vector<int>& digits : tensor.dims) {
    if (digits.empty()) {
      letters.atoms.push_back(-1);
      letters.shape.push_back(1);
      letters.text += '1';
      continue;
    }
    letters.is_one_digit_each = letters.is_one_digit_each && digits.size() == 1;
    for (const int atom : digits) {
      const char letter = letter_of(atom, roles, depth);
      if (letter == '?') {
        return refuse<Reason::kNoLetter>();
      }
      letters.atoms.push_back(atom);
      letters.shape.push_back(sizes[atom]);
      letters.text += letter;
    }
  }
  return letters;
}

// Whether the dimensions of each letter are neighbours in their logical order, so that each letter has one stride.
bool is_regular(const Letters& letters, const Roles& roles, const std::vector<int>& depth) {
  for (const char letter : {'b', 'h', 's', 'd'}) {
    const std::vector<int> wanted = logical_order(letter, roles, depth);
    std::vector<int> found;
    bool interrupted = false;
    for (size_t i = 0; i < letters.atoms.size(); ++i) {
      if (letters.text[i] == letter) {
        if (interrupted) {
          return false;
        }
        found.push_back(letters.atoms[i]);
      } else if (!found.empty() && letters.text[i] != '1') {
        interrupted = true;
      }
    }
    std::vector<int> expected;
    for (const int atom : wanted) {
      if (std::find(found.begin(), found.end(), atom) != found.end()) {
        expected.push_back(atom);
      }
    }
    if (found.size() > 1 && found != expected) {
      return false;
    }
  }
  return true;
}

// The permutation of the letters that makes them regular: b, h, s, d, each in its logical order.
std::vector<int64_t> regular_permutation(const Letters& letters, const Roles& roles, const std::vector<int>& depth) {
  std::vector<int64_t> order(letters.atoms.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int64_t i) {
    const char letter = letters.text[static_cast<size_t>(i)];
    const size_t group = std::string("1bhsd").find(letter);
    const std::vector<int> logical = logical_order(letter, roles, depth);
    const auto at = std::find(logical.begin(), logical.end(), letters.atoms[static_cast<size_t>(i)]);
    return std::pair(group, at - logical.begin());
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return rank(x) < rank(y); });
  return order;
}

}  // namespace

std::vector<int> PlacedTensor::order() const {
  std::vector<int> atoms;
  for (const auto& digits : dims) {
    atoms.insert(atoms.end(), digits.begin(), digits.end());
  }
  return atoms;
}

std::optional<PlacedTensor> place_tensor(mlir::Value value, const std::vector<Affine>& indices,
                                         const std::vector<int64_t>& sizes) {
  PlacedTensor tensor{.value = value, .dims = {}};
  AtomSet seen = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    auto digits = digits_of(indices[i], shape(value)[i], sizes);
    if (!digits) {
      return std::nullopt;
    }
    for (const int atom : *digits) {
      if ((seen & atom_bit(atom)) != 0) {
        return std::nullopt;  // the same atom twice: a diagonal
      }
      seen |= atom_bit(atom);
    }
    tensor.dims.push_back(std::move(*digits));
  }
  return tensor;
}

Sources follow_operand(mlir::Value operand, std::vector<Affine> indices, const std::vector<int64_t>& sizes,
                       Conversions passed) {
  Sources sources;
  float scale = 1.0f;
  mlir::Value value = operand;
  while (value) {
    if (auto tensor = place_tensor(value, indices, sizes)) {
      tensor->scale = scale;
      sources.tensors.push_back(std::move(*tensor));
    }
    Step step = step_back(value, indices, sizes, passed);
    sources.split = step.split;
    scale *= step.scale;
    value = step.value;
    indices = std::move(step.indices);
  }
  return sources;
}

std::optional<DType> half_type_of(mlir::Value operand, Conversions passed) {
  while (mlir::Operation* op = operand.getDefiningOp()) {
    if (const mlir::Value same = same_number(operand)) {
      operand = same;
      continue;
    }
    float factor = 1.0f;
    const mlir::Value scaled = scaled_operand(op, factor);
    const bool moves = kind(op) == OpKind::kTranspose || kind(op) == OpKind::kReshape ||
                       kind(op) == OpKind::kBroadcastInDim || is_passed_through(op, passed);
    if (!scaled && !moves) {
      break;
    }
    operand = scaled ? scaled : op->getOperand(0);
  }
  const auto type = dtype(operand.getType());
  return is_half(type) ? type : std::nullopt;
}

std::optional<PlacedTensor> follow_result(const PlacedTensor& tensor, const std::vector<int64_t>& sizes,
                                          std::optional<DType> half) {
  mlir::Value value = tensor.value;  // MLIR's handles have non-const members
  if (!value.hasOneUse()) {
    return std::nullopt;
  }
  return follow_use(tensor, *value.getUsers().begin(), sizes, half);
}

std::optional<PlacedTensor> follow_use(const PlacedTensor& tensor, mlir::Operation* user,
                                       const std::vector<int64_t>& sizes, std::optional<DType> half) {
  mlir::Value value = tensor.value;
  if (user->getNumOperands() != 1 || user->getNumResults() != 1 || user->getBlock() != value.getParentBlock() ||
      !static_tensor(user->getResult(0))) {
    return std::nullopt;
  }
  PlacedTensor next{.value = user->getResult(0), .dims = {}};
  switch (kind(user)) {
    case OpKind::kTranspose:
      for (const int64_t from : permutation(user)) {
        next.dims.push_back(tensor.dims[static_cast<size_t>(from)]);
      }
      return next;
    case OpKind::kReshape: {
      const std::vector<int> atoms = tensor.order();
      size_t at = 0;
      for (const int64_t size : shape(next.value)) {
        std::vector<int> digits;
        int64_t product = 1;
        while (product < size && at < atoms.size()) {
          product *= sizes[atoms[at]];
          digits.push_back(atoms[at++]);
        }
        if (product != size) {
          return std::nullopt;
        }
        next.dims.push_back(std::move(digits));
      }
      return next;
    }
    case OpKind::kConvert: {
      const auto from = dtype(value.getType());
      const auto to = dtype(next.value.getType());
      const bool rounds_once = from == DType::kF32 || (is_half(from) && from == half);
      if (!rounds_once || (to != DType::kF32 && !is_half(to))) {
        return std::nullopt;
      }
      next.dims = tensor.dims;
      return next;
    }
    default:
      return std::nullopt;
  }
}

namespace {

// The view of a tensor whose first `repeated` dimensions its source lacks.
Outcome<OperandView> view_of(const PlacedTensor& tensor, size_t repeated, const Roles& roles,
                             const std::vector<int>& depth, const std::vector<int64_t>& sizes) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Letters letters, letters_of(tensor, roles, depth, sizes));
  const auto first = letters.shape.begin() + static_cast<std::ptrdiff_t>(repeated);
  OperandView view{.source = tensor.value,
                   .reshape = {},
                   .permutation = {},
                   .dims = letters.text,
                   .repeated = {letters.shape.begin(), first}};
  if (!letters.is_one_digit_each) {
    view.reshape.assign(first, letters.shape.end());
  }
  if (!is_regular(letters, roles, depth)) {
    view.permutation = regular_permutation(letters, roles, depth);
    for (size_t i = 0; i < view.permutation.size(); ++i) {
      view.dims[i] = letters.text[static_cast<size_t>(view.permutation[i])];
    }
  }
  return view;
}

// The atoms that the tensor lacks, of these, in front of its dimensions.
std::vector<std::vector<int>> with_lacking(const PlacedTensor& tensor, const std::vector<std::vector<int>>& wanted) {
  const std::vector<int> present = tensor.order();
  std::vector<std::vector<int>> dims = tensor.dims;
  for (const auto& atoms : wanted) {
    for (auto atom = atoms.rbegin(); atom != atoms.rend(); ++atom) {
      if (std::find(present.begin(), present.end(), *atom) == present.end()) {
        dims.insert(dims.begin(), {*atom});
      }
    }
  }
  return dims;
}

}  // namespace

Outcome<OperandView> operand_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                  const std::vector<int64_t>& sizes, bool is_key_or_value) {
  const std::vector<int> present = tensor.order();
  const auto is_present = [&](int atom) { return std::find(present.begin(), present.end(), atom) != present.end(); };
  const std::vector<int> heads = is_key_or_value ? roles.kv_head : roles.heads();
  std::vector<std::vector<int>> partly_shared;
  for (const auto& atoms : {heads, roles.batch}) {
    if (std::any_of(atoms.begin(), atoms.end(), is_present) && !std::all_of(atoms.begin(), atoms.end(), is_present)) {
      partly_shared.push_back(atoms);
    }
  }
  if (partly_shared.empty()) {
    return view_of(tensor, 0, roles, depth, sizes);
  }
  const auto others = is_key_or_value ? roles.query : roles.key;
  const int64_t groups = is_key_or_value ? extent(roles.group, sizes) : 1;
  if (extent(depth, sizes) > extent(others, sizes) * groups) {
    return refuse<Reason::kPartlyShared>();
  }
  PlacedTensor whole = tensor;
  whole.dims = with_lacking(tensor, partly_shared);
  return view_of(whole, whole.dims.size() - tensor.dims.size(), roles, depth, sizes);
}

Outcome<OperandView> whole_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                const std::vector<int64_t>& sizes) {
  PlacedTensor whole = tensor;
  whole.dims = with_lacking(tensor, {depth, roles.query, roles.heads(), roles.batch});
  return view_of(whole, whole.dims.size() - tensor.dims.size(), roles, depth, sizes);
}

std::optional<float> ratio_of_tensors(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                                      const std::vector<Affine>& y_indices, const std::vector<int64_t>& sizes) {
  const Sources of_x = follow_operand(x, x_indices, sizes, Conversions::kExact);
  const Sources of_y = follow_operand(y, y_indices, sizes, Conversions::kExact);
  if (of_x.tensors.empty() || of_y.tensors.empty()) {
    return std::nullopt;
  }
  const PlacedTensor& root_x = of_x.tensors.back();
  const PlacedTensor& root_y = of_y.tensors.back();
  if (root_x.dims != root_y.dims || !SameValues()(root_x.value, root_y.value)) {
    return std::nullopt;
  }
  return root_x.scale == root_y.scale ? 1.0f : root_x.scale / root_y.scale;
}

bool is_same_tensor(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                    const std::vector<Affine>& y_indices, const std::vector<int64_t>& sizes) {
  return ratio_of_tensors(x, x_indices, y, y_indices, sizes) == 1.0f;
}

std::optional<PlacedTensor> follow_scaling(const PlacedTensor& tensor, const std::vector<int64_t>& sizes,
                                           std::optional<DType> half) {
  for (std::optional<PlacedTensor> at = tensor; at; at = follow_result(*at, sizes, half)) {
    mlir::Operation* const user = at->value.hasOneUse() ? *at->value.user_begin() : nullptr;
    float factor = 1.0f;
    if (user != nullptr && scaled_operand(user, factor) == at->value && user->getNumResults() == 1 &&
        user->getBlock() == at->value.getParentBlock() && static_tensor(user->getResult(0)) &&
        shape(user->getResult(0)) == shape(at->value)) {
      return PlacedTensor{.value = user->getResult(0), .dims = at->dims, .scale = factor};
    }
  }
  return std::nullopt;
}

Outcome<ResultView> result_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                const std::vector<int64_t>& sizes) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Letters letters, letters_of(tensor, roles, depth, sizes));
  ResultView view{.replaced = tensor.value, .call_shape = letters.shape, .dims = letters.text, .permutation = {}};
  if (!is_regular(letters, roles, depth)) {
    const std::vector<int64_t> order = regular_permutation(letters, roles, depth);
    view.permutation.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      view.call_shape[i] = letters.shape[static_cast<size_t>(order[i])];
      view.dims[i] = letters.text[static_cast<size_t>(order[i])];
      view.permutation[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    }
  }
  return view;
}

}  // namespace flashlift::stablehlo
