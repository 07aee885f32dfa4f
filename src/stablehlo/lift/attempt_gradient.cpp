// The backward pass of an attention: the products that read its score plane beside its own two, proved to be the
// gradients by its operands.
//
// Producers write the derivative of a softmax in many ways, and all of them are right. So what a product sums is not
// taken apart, but compared with p (d_p - sum p d_p) ds/dscore in numbers (numeric.h).
#include <algorithm>
#include <cmath>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/lift/attempt.h"
#include "stablehlo/lift/numeric.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

constexpr int kDraws = 6;
constexpr int kMostRows = 12;        // compared in each draw
constexpr int64_t kMostKeys = 8192;  // in these together
constexpr double kTolerance = 1e-6;  // of the largest term
constexpr double kStep = 1e-4;       // of the differences that give ds/dscore

// All ways to run through `atoms`, each once, with the dimensions of a tensor: a few, as sizes must fit.
void assign_atoms(llvm::ArrayRef<int64_t> dims, const std::vector<int>& atoms, const std::vector<int64_t>& sizes,
                  std::vector<std::vector<int>>& current, std::vector<std::vector<std::vector<int>>>& all) {
  constexpr size_t kMostAssignments = 200;
  if (all.size() >= kMostAssignments) {
    return;
  }
  if (dims.empty()) {
    size_t used = 0;
    for (const auto& digits : current) {
      used += digits.size();
    }
    if (used == atoms.size()) {
      all.push_back(current);
    }
    return;
  }
  const auto is_used = [&](int atom) {
    return std::any_of(current.begin(), current.end(), [&](const std::vector<int>& digits) {
      return std::find(digits.begin(), digits.end(), atom) != digits.end();
    });
  };
  const std::function<void(std::vector<int>, int64_t)> extend = [&](std::vector<int> digits, int64_t rest) {
    if (rest == 1) {
      current.push_back(digits);
      assign_atoms(dims.drop_front(), atoms, sizes, current, all);
      current.pop_back();
      return;
    }
    for (const int atom : atoms) {
      const int64_t size = sizes[static_cast<size_t>(atom)];
      if (!is_used(atom) && std::find(digits.begin(), digits.end(), atom) == digits.end() && rest % size == 0) {
        digits.push_back(atom);
        extend(digits, rest / size);
        digits.pop_back();
      }
    }
  };
  extend({}, dims.front());
}

// The index that runs through these atoms, major to minor.
Affine index_of(const std::vector<int>& atoms, const std::vector<int64_t>& sizes) {
  Affine index;
  int64_t stride = 1;
  for (size_t i = atoms.size(); i-- > 0;) {
    index = affine_sum(index, affine_product(affine_atom(atoms[i]), stride));
    stride *= sizes[static_cast<size_t>(atoms[i])];
  }
  return index;
}

// The indices of the other operand of a product, whose free dimensions run through `depth`. Nothing if they do not.
std::optional<std::vector<Affine>> other_indices(mlir::Operation* product, unsigned side,
                                                 const std::vector<Affine>& indices, const std::vector<int>& depth,
                                                 const std::vector<int64_t>& sizes) {
  const OperandDims mine = operand_dims(product, side);
  const OperandDims other = operand_dims(product, 1 - side);
  const auto other_shape = shape(product->getOperand(1 - side));
  std::vector<Affine> result(other_shape.size());
  for (size_t i = 0; i < mine.batch.size(); ++i) {
    result[static_cast<size_t>(other.batch[i])] = indices[static_cast<size_t>(mine.batch[i])];
  }
  for (size_t i = 0; i < mine.contract.size(); ++i) {
    result[static_cast<size_t>(other.contract[i])] = indices[static_cast<size_t>(mine.contract[i])];
  }
  size_t next = 0;
  for (const int64_t d : other.free) {
    const int64_t size = other_shape[static_cast<size_t>(d)];
    if (size == 1) {
      continue;
    }
    if (next == depth.size() || sizes[static_cast<size_t>(depth[next])] != size) {
      return std::nullopt;
    }
    result[static_cast<size_t>(d)] = affine_atom(depth[next++]);
  }
  return next == depth.size() ? std::optional(result) : std::nullopt;
}

// Batch dimensions, then the free ones of the left operand, then those of the right one.
std::vector<Affine> result_indices(mlir::Operation* product, const std::vector<Affine>& lhs,
                                   const std::vector<Affine>& rhs) {
  const OperandDims left = operand_dims(product, 0);
  const OperandDims right = operand_dims(product, 1);
  std::vector<Affine> result;
  for (const int64_t d : left.batch) {
    result.push_back(lhs[static_cast<size_t>(d)]);
  }
  for (const int64_t d : left.free) {
    result.push_back(lhs[static_cast<size_t>(d)]);
  }
  for (const int64_t d : right.free) {
    result.push_back(rhs[static_cast<size_t>(d)]);
  }
  return result;
}

std::vector<int> sorted(std::vector<int> atoms) {
  std::sort(atoms.begin(), atoms.end());
  return atoms;
}

std::vector<int> joined(std::initializer_list<std::vector<int>> parts) {
  std::vector<int> all;
  for (const auto& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return sorted(all);
}

}  // namespace

// Whether two operands of products are the same tensor read in the same way.
bool Attempt::is_same_tensor(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                             const std::vector<Affine>& y_indices) const {
  const Sources of_x = follow_operand(x, x_indices, sizes_, true);
  const Sources of_y = follow_operand(y, y_indices, sizes_, true);
  if (of_x.tensors.empty() || of_y.tensors.empty()) {
    return false;
  }
  const PlacedTensor& root_x = of_x.tensors.back();
  const PlacedTensor& root_y = of_y.tensors.back();
  return root_x.value == root_y.value && root_x.dims == root_y.dims && root_x.scale == root_y.scale;
}

// Everything that the scores flow into must end in the attention's output or in a product.
Result<std::vector<Attempt::Exit>> Attempt::find_exits() {
  std::vector<Exit> exits;
  llvm::DenseSet<mlir::Operation*> seen;
  std::vector<mlir::Operation*> stack{first_};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* user = use.getOwner();
      if (user == second_ && options_.gradient == GradientUse::kBesideOutput) {
        continue;
      }
      if (is_product(user)) {
        exits.push_back({.product = user, .side = use.getOperandNumber()});
        continue;
      }
      if (!is_removable(user) || user->getBlock() != first_->getBlock()) {
        return unsupported(
            "scores or probabilities are used elsewhere (as an output, or for a gradient that is not read): they reach "
            "`{}` at {}",
            user->getName().getStringRef().str(), describe(user->getLoc()));
      }
      if (seen.insert(user).second) {
        stack.push_back(user);
      }
    }
  }
  return exits;
}

// One that has met the probabilities, so that all else is read at their place of the plane.
Result<Evaluator> Attempt::make_evaluator_of_plane() {
  FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, make_evaluator());
  if (evaluator.evaluate(second_->getOperand(side_), probability_indices_) == kNoSym) {
    return internal_error("the probabilities cannot be read a second time");
  }
  return evaluator;
}

// The place of the exit's operand in the score plane is where its formula reads the scores in the forward's way.
Status Attempt::read_exit(Exit& exit) {
  const mlir::Value operand = exit.product->getOperand(exit.side);
  std::vector<int> atoms = {kKeyAtom};
  for (const Index& index : probability_indices_) {
    for (const auto& term : index.affine.terms) {
      if (term.first != kKeyAtom) {
        atoms.push_back(term.first);
      }
    }
  }
  std::erase_if(atoms, [&](int atom) { return sizes_[static_cast<size_t>(atom)] == 1; });
  std::vector<std::vector<int>> current;
  std::vector<std::vector<std::vector<int>>> assignments;
  assign_atoms(shape(operand), atoms, sizes_, current, assignments);
  std::string reason = "its dimensions are not those of the scores";
  for (const auto& assignment : assignments) {
    std::vector<Index> indices;
    for (const std::vector<int>& digits : assignment) {
      indices.push_back({.affine = index_of(digits, sizes_)});
    }
    FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, make_evaluator_of_plane());
    if (evaluator.evaluate(operand, indices) == kNoSym) {
      reason = evaluator.failure().empty() ? reason : evaluator.failure();
      continue;
    }
    exit.plane_indices = indices;
    return {};
  }
  return unsupported("a product at {} reads the scores, and is not understood: {}", describe(exit.product->getLoc()),
                     reason);
}

// By one evaluator, so that the number of a leaf means the same tensor in all formulas.
Status Attempt::evaluate_exits(std::vector<Exit>& exits) {
  FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, make_evaluator_of_plane());
  for (Exit& exit : exits) {
    exit.formula = evaluator.evaluate(exit.product->getOperand(exit.side), exit.plane_indices);
    if (exit.formula == kNoSym) {
      return unsupported("{}", evaluator.failure());
    }
  }
  evaluator_.emplace(std::move(evaluator));
  return {};
}

Status Attempt::place_exit(Exit& exit) {
  const std::vector<Affine> indices = affine_of(exit.plane_indices);
  const OperandDims dims = operand_dims(exit.product, exit.side);
  exit.sums_over_keys = std::any_of(dims.contract.begin(), dims.contract.end(), [&](int64_t d) {
    return evaluator_->runs_over_keys(indices[static_cast<size_t>(d)]);
  });
  for (const std::vector<int>* depth : {&depth_, &value_depth_}) {
    const auto other = other_indices(exit.product, exit.side, indices, *depth, sizes_);
    if (!other) {
      continue;
    }
    // Depths of queries and of values may be of one size: the operand tells which it is.
    if (depth == &depth_) {
      const bool is_key = is_same_tensor(exit.other(), *other, k_operand_, k_indices_);
      const bool is_query = is_same_tensor(exit.other(), *other, q_operand_, q_indices_);
      if (exit.sums_over_keys ? !is_key : !is_query) {
        continue;
      }
    }
    auto result = place_tensor(
        exit.product->getResult(0),
        exit.side == 0 ? result_indices(exit.product, indices, *other) : result_indices(exit.product, *other, indices),
        sizes_);
    if (result) {
      exit.other_indices = *other;
      exit.result = std::move(*result);
      exit.is_of_values = depth == &value_depth_;
      return {};
    }
  }
  return unsupported("a product at {} reads the scores, and is no gradient by queries, keys or values",
                     describe(exit.product->getLoc()));
}

// d_out is what is multiplied with the values to give the gradient by the probabilities, or, where nobody asks for that
// one, what the probabilities are multiplied with.
Status Attempt::find_output_gradient(const std::vector<Exit>& exits) {
  const auto take = [&](mlir::Value value, const std::vector<Affine>& indices) -> Status {
    for (const Exit& exit : exits) {  // a second derivative: the two calls would need each other
      if (DependsOn(exit.product, nullptr)(value.getDefiningOp())) {
        return unsupported("the gradient of the output is computed from a gradient of the same attention");
      }
    }
    const auto placed = place_tensor(value, indices, sizes_);
    if (!placed) {
      return unsupported("the gradient of the output is read by an index that no strided tensor has");
    }
    FLASHLIFT_ASSIGN_OR_RETURN(lifted_.gradient->d_out, operand_view(*placed, roles_, value_depth_, sizes_, false));
    d_out_operand_ = value;
    d_out_indices_ = indices;
    return {};
  };
  for (const GradientProduct& candidate : gradient_products()) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], v_operand_, v_indices_)) {
        gradient_formula_ = candidate.formula;
        return take(candidate.product->getOperand(1 - side), candidate.indices[1 - side]);
      }
    }
  }
  for (const Exit& exit : exits) {
    if (!exit.sums_over_keys && exit.is_of_values) {
      return take(exit.other(), exit.other_indices);
    }
  }
  return unsupported("no product of the output's gradient and the values was found");
}

// Without the output, the values are known as what the output's gradient is multiplied with.
Status Attempt::place_values_of_gradient() {
  const unsigned other = 1 - side_;
  const auto other_shape = shape(second_->getOperand(other));
  for (const int64_t d : operand_dims(second_, other).free) {
    if (other_shape[static_cast<size_t>(d)] != 1) {
      value_depth_.push_back(new_atom(other_shape[static_cast<size_t>(d)]));
    }
  }
  d_out_operand_ = second_->getOperand(other);
  d_out_indices_ = *other_indices(second_, side_, affine_of(probability_indices_), value_depth_, sizes_);
  FLASHLIFT_ASSIGN_OR_RETURN(std::vector<Exit> exits, find_exits());
  for (Exit& exit : exits) {
    FLASHLIFT_RETURN_IF_ERROR(read_exit(exit));
  }
  FLASHLIFT_RETURN_IF_ERROR(evaluate_exits(exits));
  for (const GradientProduct& candidate : gradient_products()) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], d_out_operand_,
                         d_out_indices_)) {
        v_operand_ = candidate.product->getOperand(1 - side);
        v_indices_ = candidate.indices[1 - side];
        return {};
      }
    }
  }
  return unsupported("no product of the output's gradient and the values was found");
}

// The products that formulas of the plane load, with the indices of their operands.
std::vector<Attempt::GradientProduct> Attempt::gradient_products() const {
  std::vector<GradientProduct> found;
  for (const Evaluator::Place& place : evaluator_->places()) {
    mlir::Operation* product = place.value.getDefiningOp();
    if (!is_product(product) || product == first_ || arena_[place.formula].kind != SymKind::kLoad) {
      continue;
    }
    const std::vector<Affine> plane = affine_of(place.indices);
    const bool is_of_plane =
        std::any_of(plane.begin(), plane.end(), [&](const Affine& i) { return evaluator_->runs_over_keys(i); });
    if (!is_of_plane || operand_dims(product, 0).contract.size() != value_depth_.size()) {
      continue;
    }
    GradientProduct candidate{.product = product, .formula = place.formula};
    size_t next = operand_dims(product, 0).batch.size();
    for (unsigned side = 0; side < 2; ++side) {
      const OperandDims own = operand_dims(product, side);
      std::vector<Affine>& indices = candidate.indices[side];
      indices.resize(shape(product->getOperand(side)).size());
      for (size_t i = 0; i < own.batch.size(); ++i) {
        indices[static_cast<size_t>(own.batch[i])] = plane[i];
      }
      for (const int64_t d : own.free) {
        indices[static_cast<size_t>(d)] = plane[next++];
      }
      for (size_t i = 0; i < own.contract.size(); ++i) {
        indices[static_cast<size_t>(own.contract[i])] = affine_atom(value_depth_[i]);
      }
    }
    found.push_back(std::move(candidate));
  }
  return found;
}

// Compares what the product sums with what it must be.
Status Attempt::check_exit(const Exit& exit) {
  std::vector<SymId> known = {whole_, softmax_.score};
  if (gradient_formula_ != kNoSym) {
    known.push_back(gradient_formula_);
  }
  if (!reads_within(arena_, exit.formula, known)) {
    return unsupported("a gradient reads or branches on what the scores do not");
  }
  const std::vector<int64_t>& atom_sizes = evaluator_->atom_sizes();
  const auto rows = static_cast<int>(std::clamp<int64_t>(kMostKeys / sizes_[kKeyAtom], 2, kMostRows));
  int compared = 0;
  for (uint64_t trial = 0; trial < kDraws; ++trial) {
    // A gradient that is clipped somewhere, or a score that is, shows in a large draw; integers are ids or lengths.
    const Draw draw{.seed = 17 * trial + 1,
                    .score_range = trial % 2 == 0 ? 4.0 : 30.0,
                    .gradient = gradient_formula_ == kNoSym ? -1 : arena_[gradient_formula_].payload,
                    .gradient_range = trial % 3 == 0 ? 1.0 : 1e6,
                    .integer_range = trial < 3 ? 3 : sizes_[kKeyAtom] + 1};
    for (int row = 0; row < rows; ++row) {
      std::vector<int64_t> atoms(kMaxAtoms, 0);
      for (size_t atom = 1; atom < atoms.size(); ++atom) {
        atoms[atom] = static_cast<int64_t>((trial * 7919 + static_cast<uint64_t>(row) * 104729 + atom * 1299709) %
                                           static_cast<uint64_t>(std::max<int64_t>(atom_sizes[atom], 1)));
      }
      FLASHLIFT_ASSIGN_OR_RETURN(const bool is_row, check_row(exit, atom_sizes, atoms, draw));
      compared += is_row ? 1 : 0;
    }
  }
  return compared >= kDraws ? Status()
                            : unsupported("too few rows of the score plane could be compared with a gradient");
}

Result<bool> Attempt::check_row(const Exit& exit, const std::vector<int64_t>& atom_sizes,
                                const std::vector<int64_t>& atoms, const Draw& draw) {
  NumericRow numbers(arena_, atom_sizes, atoms, draw);
  const auto keys = static_cast<size_t>(sizes_[kKeyAtom]);
  std::vector<double> p(keys);
  std::vector<double> d_p(keys);
  double p_d_p = 0;
  for (size_t key = 0; key < keys; ++key) {
    p[key] = numbers.value(whole_, key);
    if (std::isnan(p[key])) {
      return false;  // a row without keys
    }
  }
  if (!exit.is_of_values && gradient_formula_ == kNoSym) {
    return unsupported("a gradient by queries or keys without one by the probabilities");
  }
  if (!exit.is_of_values) {
    for (size_t key = 0; key < keys; ++key) {
      d_p[key] = numbers.value(gradient_formula_, key);
      p_d_p += p[key] * d_p[key];
    }
  }
  std::vector<double> found(keys);
  for (size_t key = 0; key < keys; ++key) {
    found[key] = numbers.value(exit.formula, key);
  }
  if (exit.is_of_values) {
    for (size_t key = 0; key < keys; ++key) {
      if (!(std::abs(found[key] - p[key]) <= kTolerance * std::max(p[key], 1e-3))) {
        return unsupported("what is multiplied with the output's gradient is not the probabilities");
      }
    }
    return true;
  }
  std::vector<double> above(keys);
  numbers.shift_scores(kStep);
  for (size_t key = 0; key < keys; ++key) {
    above[key] = numbers.value(softmax_.score, key);
  }
  numbers.shift_scores(-kStep);
  for (size_t key = 0; key < keys; ++key) {
    const double slope = (above[key] - numbers.value(softmax_.score, key)) / (2 * kStep);
    const double expected = p[key] == 0 ? 0 : p[key] * (d_p[key] - p_d_p) * slope;
    const double size = std::max(p[key] * (std::abs(d_p[key]) + std::abs(p_d_p)), 1e-6 * draw.gradient_range) *
                        std::max(1.0, std::abs(slope));
    if (!(std::abs(found[key] - expected) <= kTolerance * size)) {
      return unsupported("what is multiplied with the keys or queries is not the gradient by the scores");
    }
  }
  return true;
}

Status Attempt::classify(const Exit& exit) {
  LiftedGradient& gradient = *lifted_.gradient;
  std::optional<ResultView>& place = exit.is_of_values     ? gradient.d_v
                                     : exit.sums_over_keys ? gradient.d_q
                                                           : gradient.d_k;
  if (place) {
    return unsupported("the module has two gradients by one tensor");
  }
  if (exit.is_of_values && !is_same_tensor(exit.other(), exit.other_indices, d_out_operand_, d_out_indices_)) {
    return unsupported("the probabilities are multiplied with something that is not the output's gradient");
  }
  const std::vector<int>& depth = exit.is_of_values ? value_depth_ : depth_;
  const std::vector<int> wanted = exit.sums_over_keys ? joined({roles_.batch, roles_.heads(), roles_.query, depth})
                                                      : joined({roles_.batch, roles_.kv_head, roles_.key, depth});
  if (sorted(exit.result.order()) != wanted) {
    return unsupported("a gradient is not summed over those that share the tensor, or over others, too");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(place, result_view(exit.result, roles_, depth, sizes_));
  return check_exit(exit);
}

Status Attempt::find_gradient() {
  FLASHLIFT_ASSIGN_OR_RETURN(std::vector<Exit> exits, find_exits());
  if (exits.empty()) {
    return unsupported("there is no gradient");
  }
  if (Status lifted = lift_gradient(exits); !lifted.ok()) {
    return unsupported("{}{}", kGradientReason, lifted.error().message);
  }
  return {};
}

Status Attempt::lift_gradient(std::vector<Exit>& exits) {
  if (roles_.key.size() > 1 || !softmax_.sinks.empty()) {
    return unsupported("the gradient of an attention with {} is not fused",
                       softmax_.sinks.empty() ? "keys in several dimensions" : "sinks");
  }
  lifted_.gradient.emplace();
  for (Exit& exit : exits) {
    FLASHLIFT_RETURN_IF_ERROR(read_exit(exit));
    FLASHLIFT_RETURN_IF_ERROR(place_exit(exit));
  }
  FLASHLIFT_RETURN_IF_ERROR(evaluate_exits(exits));
  FLASHLIFT_RETURN_IF_ERROR(find_output_gradient(exits));
  for (const Exit& exit : exits) {
    FLASHLIFT_RETURN_IF_ERROR(classify(exit));
  }
  lifted_.problem.want_lse = true;  // the backward pass reads it
  return {};
}

}  // namespace flashlift::stablehlo
