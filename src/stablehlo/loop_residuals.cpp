#include "stablehlo/loop_residuals.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/branch_residuals.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/loop.h"
#include "stablehlo/loop_carries.h"
#include "stablehlo/rewrite/build.h"
#include "stablehlo/sharding.h"

namespace flashlift::stablehlo {
namespace {

// Where each iteration writes or reads one entry of a tensor; nothing if that is no entry of one dimension.
std::optional<Numbers> places(const Loop& loop, llvm::ArrayRef<int64_t> whole, llvm::ArrayRef<int64_t> entry,
                              mlir::ValueRange starts) {
  std::optional<size_t> along;
  for (size_t dim = 0; dim < whole.size(); ++dim) {
    if (entry[dim] != whole[dim]) {
      if (along || entry[dim] != 1 || whole[dim] == 0) {
        return std::nullopt;
      }
      along = dim;
    }
  }
  if (!along) {  // the whole tensor
    return Numbers(loop.iterations(), 0);
  }
  auto numbers = loop.numbers(starts[*along]);
  for (int64_t& number : numbers ? *numbers : Numbers()) {
    number = std::clamp<int64_t>(number, 0, whole[*along] - 1);  // as StableHLO defines
  }
  return numbers;
}

mlir::Value without_annotations(mlir::Value value) {
  for (mlir::Operation* op = value.getDefiningOp(); op != nullptr && is_annotation(op); op = value.getDefiningOp()) {
    value = op->getOperand(0);
  }
  return value;
}

// A tensor to which each iteration of a loop writes an entry.
struct Stack {
  mlir::Value entry;                           // in the body, with a dimension of size 1
  llvm::DenseMap<int64_t, int64_t> iteration;  // by place
};

std::optional<Stack> stack_of(const Loop& loop, unsigned carry) {
  mlir::Operation* const write = defining(without_annotations(loop.returned(carry)), OpKind::kDynamicUpdateSlice);
  if (write == nullptr || write->getOperand(0) != loop.argument(carry) || !static_tensor(write->getOperand(0)) ||
      !static_tensor(write->getOperand(1)) || write->getBlock() != &loop.body()) {
    return std::nullopt;
  }
  const auto written =
      places(loop, shape(write->getOperand(0)), shape(write->getOperand(1)), write->getOperands().drop_front(2));
  if (!written) {
    return std::nullopt;
  }
  Stack stack;
  stack.entry = without_annotations(write->getOperand(1));
  for (size_t i = 0; i < written->size(); ++i) {
    if (!stack.iteration.try_emplace((*written)[i], static_cast<int64_t>(i)).second) {
      return std::nullopt;
    }
  }
  return stack;
}

// The result of an earlier loop that is an operand of this one. JAX reshapes stacks twice between loops that compute
// several layers in an iteration.
mlir::OpResult result_of_loop(mlir::Value operand) {
  mlir::Value source = without_annotations(operand);
  while (const mlir::Value other = kind(source) == OpKind::kReshape ? reshaped(source) : mlir::Value()) {
    source = without_annotations(other);
  }
  const bool is_same = source.getType() == operand.getType() && kind(source) == OpKind::kWhile;
  return is_same ? mlir::dyn_cast<mlir::OpResult>(source) : mlir::OpResult();
}

bool has_one_use_after_another(mlir::Value operand, mlir::OpResult source) {
  for (mlir::Value value = operand;; value = value.getDefiningOp()->getOperand(0)) {
    if (!value.hasOneUse() || value == source) {
      return value.hasOneUse();
    }
  }
}

// Whether a product may be that of probabilities and values, with an operand that has an element for each score.
bool weighs_values(mlir::Operation* product) {
  constexpr size_t kFarthest = 50;
  return llvm::any_of(product->getOperands(), [](mlir::Value operand) {
    return any_operation({operand.getDefiningOp()}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
      const auto type = op->getNumResults() == 1 ? static_tensor(op->getResult(0)) : nullptr;
      if (is_dot(op) || kind(op) == OpKind::kReduce || !type || !mlir::isa<mlir::FloatType>(type.getElementType())) {
        return false;  // masks and random bits may be computed from many operations
      }
      push_definitions(op, stack);
      return (kind(op) == OpKind::kExponential || kind(op) == OpKind::kPower) && is_near_softmax(op->getResult(0));
    });
  });
}

class LoopPair {
 public:
  LoopPair(Loop forward, Loop backward, int64_t first, const std::set<int64_t>& except)
      : forward_(std::move(forward)), backward_(std::move(backward)), builder_(backward_.op()), first_(first) {
    for (const auto [i, op] : llvm::enumerate(forward_.body())) {
      if (except.contains(first_ + static_cast<int64_t>(i))) {
        except_.insert(&op);
      }
    }
  }

  // As compute_residuals_again().
  mlir::Operation* run() {
    find_reads();
    move_to_beginning();
    std::vector<Read> again;
    for (const Read& read : reads_) {
      if (read.is_only_use &&
          (is_of_attention(read.entry) || is_factor_of_scores(read.entry) || is_split_off(read.entry))) {
        again.push_back(read);
      } else {
        bind(read.entry, read.slice);
      }
    }
    for (bool is_settled = false; !is_settled;) {  // what can be computed may depend on what is read
      is_settled = true;
      computable_.clear();
      for (size_t i = 0; i < again.size(); ++i) {
        if (!can_compute(again[i].entry)) {
          bind(again[i].entry, again[i].slice);
          again.erase(again.begin() + static_cast<std::ptrdiff_t>(i));
          is_settled = false;
          break;
        }
      }
    }
    if (again.empty() || llvm::none_of(again, [](const Read& read) { return holds_scores(read.entry); })) {
      return nullptr;
    }
    for (const Read& read : again) {
      collect(read.entry);
    }
    copy_operations();
    for (const Read& read : again) {
      substitute(read.entry, read.slice);
    }
    return with_invariants(backward_.op(), invariants_);
  }

 private:
  // A slice that the second loop takes of the first one's entries.
  struct Read {
    mlir::Value entry;
    mlir::Value slice;
    bool is_only_use;
  };

  // More than one number for each row.
  static bool holds_scores(mlir::Value entry) { return llvm::none_of(shape(entry).take_back(1), is_one); }
  static bool is_one(int64_t size) { return size == 1; }

  // Sets the first loop's iteration of each iteration of the second one. Returns whether it is that of other reads.
  bool is_of_same_iteration(const Stack& stack, const Numbers& read) {
    Numbers found;
    for (const int64_t place : read) {
      const auto iteration = stack.iteration.find(place);
      if (iteration == stack.iteration.end()) {
        return false;
      }
      found.push_back(iteration->second);
    }
    if (iterations_.empty()) {
      iterations_ = std::move(found);
      return true;
    }
    return found == iterations_;
  }

  void find_reads() {
    for (const auto [carry, operand] : llvm::enumerate(backward_.op()->getOperands())) {
      const mlir::OpResult source = result_of_loop(operand);
      const auto stack =
          source && source.getOwner() == forward_.op() && backward_.is_invariant(static_cast<unsigned>(carry))
              ? stack_of(forward_, source.getResultNumber())
              : std::nullopt;
      if (!stack) {
        continue;
      }
      std::vector<mlir::Value> slices;
      bool are_all = has_one_use_after_another(operand, source) && backward_.op()->getResult(carry).use_empty();
      for (mlir::OpOperand& use : backward_.argument(static_cast<unsigned>(carry)).getUses()) {
        mlir::Operation* const reader = use.getOwner();
        if (reader == &backward_.body().back()) {
          continue;
        }
        const bool is_slice = kind(reader) == OpKind::kDynamicSlice && use.getOperandNumber() == 0 &&
                              reader->getBlock() == &backward_.body();
        const auto read = is_slice ? places(backward_, shape(use.get()), dynamic_slice_sizes(reader),
                                            reader->getOperands().drop_front())
                                   : std::nullopt;
        if (read && reader->getResult(0).getType() == stack->entry.getType() && is_of_same_iteration(*stack, *read)) {
          slices.push_back(reader->getResult(0));
        } else {
          are_all = false;
        }
      }
      for (const mlir::Value slice : slices) {
        reads_.push_back({stack->entry, slice, are_all});
      }
    }
  }

  // Moves the slices, and the computation of their indices, to the beginning of the body, so that everything that is
  // computed from them can follow there.
  void move_to_beginning() {
    llvm::SetVector<mlir::Operation*> moved;
    std::vector<mlir::Operation*> pending;
    for (const Read& read : reads_) {
      pending.push_back(read.slice.getDefiningOp());
    }
    while (!pending.empty()) {
      mlir::Operation* const op = pending.back();
      pending.pop_back();
      if (op != nullptr && op->getBlock() == &backward_.body() && moved.insert(op)) {
        op->walk([&](mlir::Operation* inner) { push_definitions(inner, pending); });
      }
    }
    mlir::Operation* first = nullptr;  // that is not moved
    for (mlir::Operation& op : llvm::make_early_inc_range(backward_.body())) {
      if (!moved.contains(&op)) {
        first = first == nullptr ? &op : first;
      } else if (first != nullptr) {
        op.moveBefore(first);
      }
      if (moved.contains(&op) && op.getNumResults() == 1) {
        if (const auto numbers = backward_.numbers(op.getResult(0))) {
          counters_.emplace_back(op.getResult(0), *numbers);
        }
      }
    }
    builder_.setInsertionPoint(first);
    for (const mlir::BlockArgument argument : backward_.body().getArguments()) {
      if (const auto numbers = backward_.numbers(argument)) {
        counters_.emplace_back(argument, *numbers);
      }
    }
  }

  // The values of the first loop's body of which a value consists. (JAX concatenates more than 16 values in groups.)
  static llvm::SmallVector<mlir::Value> parts_of(mlir::Value value) {
    llvm::SmallVector<mlir::Value> parts;
    if (const mlir::Value whole = reshaped(value)) {
      parts.push_back(whole);
    } else if (mlir::Operation* const concatenation = defining(value, OpKind::kConcatenate)) {
      for (const mlir::Value operand : concatenation->getOperands()) {
        mlir::Operation* const inner = defining(operand, OpKind::kConcatenate);
        if (!static_tensor(operand)) {
          return {};
        }
        if (inner != nullptr && concat_dim(inner) == concat_dim(concatenation)) {
          parts.append(parts_of(operand));
        } else {
          parts.push_back(operand);
        }
      }
    }
    return parts;
  }

  // A value of the second loop's body that is equal to number `i` of the first one's `parts` of a value, which is equal
  // to `same`.
  mlir::Value part(mlir::Value value, llvm::ArrayRef<mlir::Value> parts, size_t i, mlir::Value same) {
    if (reshaped(value)) {
      return reshape(builder_, same.getLoc(), same, shape(parts[i]));
    }
    const auto along = static_cast<size_t>(*concat_dim(value.getDefiningOp()));
    llvm::SmallVector<int64_t> start(shape(parts[i]).size(), 0);
    llvm::SmallVector<int64_t> limit(shape(parts[i]));
    for (const mlir::Value before : parts.take_front(i)) {
      start[along] += shape(before)[along];
    }
    limit[along] += start[along];
    const auto named = [&](llvm::StringRef name, llvm::ArrayRef<int64_t> numbers) {
      return mlir::NamedAttribute(builder_.getStringAttr(name), builder_.getDenseI64ArrayAttr(numbers));
    };
    return build(builder_, same.getLoc(), "stablehlo.slice", same, parts[i].getType(),
                 {named("start_indices", start), named("limit_indices", limit),
                  named("strides", llvm::SmallVector<int64_t>(start.size(), 1))})
        ->getResult(0);
  }

  // Operations of the second loop that compute the same part of a value as `part`.
  static std::vector<mlir::Value> same_parts(mlir::Value of, mlir::Value part) {
    std::vector<mlir::Value> found;
    for (mlir::Operation* user : of.getUsers()) {
      mlir::Operation* const op = part.getDefiningOp();
      const bool is_same = op != nullptr && user != op && user->getName() == op->getName() &&
                           user->getNumOperands() == 1 && user->getResultTypes() == op->getResultTypes() &&
                           user->getPropertiesAsAttribute() == op->getPropertiesAsAttribute();
      if (is_same) {
        found.push_back(user->getResult(0));
      }
    }
    return found;
  }

  // Notes that both are equal, and so are their parts.
  void bind(mlir::Value value, mlir::Value same) {
    known_.map(value, same);
    if (mlir::Operation* const op = value.getDefiningOp(); op != nullptr && is_annotation(op)) {
      bind(op->getOperand(0), same);
    }
    const auto parts = parts_of(value);
    for (size_t i = 0; i < parts.size(); ++i) {
      const mlir::Value of_same = part(value, parts, i, same);
      for (mlir::Value other : same_parts(same, of_same)) {
        other.replaceAllUsesWith(of_same);
      }
      bind(parts[i], of_same);
    }
  }

  // Uses the copy of a value of the first loop's body instead of what was read.
  void substitute(mlir::Value value, mlir::Value read) {
    const auto parts = parts_of(value);
    for (size_t i = 0; i < parts.size(); ++i) {
      const mlir::Value of_read = part(value, parts, i, read);
      for (mlir::Value other : same_parts(read, of_read)) {
        substitute(parts[i], other);
      }
    }
    read.replaceAllUsesWith(known_.lookup(value));
  }

  // Whether the second loop can compute a value of the first one's body.
  bool can_compute(mlir::Value value) {
    constexpr size_t kMostOperations = 5000;
    if (known_.contains(value)) {
      return true;
    }
    if (const auto found = computable_.find(value); found != computable_.end()) {
      return found->second;
    }
    bool can = false;
    mlir::Operation* const op = value.getDefiningOp();
    if (!forward_.op()->isAncestor(value.getParentBlock()->getParentOp())) {
      can = true;
    } else if (op == nullptr) {
      const auto argument = mlir::cast<mlir::BlockArgument>(value);
      can = forward_.is_invariant(argument.getArgNumber()) || has_counter(argument);
    } else if ((is_removable(op) || is_annotation(op)) && computable_.size() < kMostOperations &&
               kind(op) != OpKind::kConvolution &&
               (!is_dot(op) || (is_product_of_attention(op) && !except_.contains(op)))) {
      can = true;
      op->walk([&](mlir::Operation* inner) {
        for (const mlir::Value operand : inner->getOperands()) {
          can = can && (is_within(operand, op) || can_compute(operand));
        }
      });
    }
    computable_[value] = can;
    return can;
  }

  static bool is_within(mlir::Value value, mlir::Operation* op) {
    return op->isAncestor(value.getParentBlock()->getParentOp());
  }

  // Finds or computes what counted the first loop's iterations.
  bool has_counter(mlir::BlockArgument argument) {
    const auto numbers = forward_.numbers(argument);
    if (!numbers || numbers->empty()) {
      return false;
    }
    Numbers wanted;
    for (const int64_t iteration : iterations_) {
      wanted.push_back((*numbers)[static_cast<size_t>(iteration)]);
    }
    for (auto& [value, given] : counters_) {
      if (value.getType() == argument.getType() && given == wanted) {
        known_.map(mlir::Value(argument), value);
        return true;
      }
    }
    for (auto& [value, given] : counters_) {
      for (const bool adds : {false, true}) {
        const auto difference = [adds](int64_t x, int64_t y) { return adds ? x - y : x + y; };
        const int64_t number = difference(wanted.front(), given.front());  // wanted: number + given, or number - given
        const auto is_same = [&](auto pair) { return difference(std::get<0>(pair), std::get<1>(pair)) == number; };
        if (value.getType() == argument.getType() && llvm::all_of(llvm::zip_equal(wanted, given), is_same)) {
          known_.map(mlir::Value(argument), counted(value, number, adds));
          return true;
        }
      }
    }
    return false;
  }

  // number + value, or number - value. Both wrap around as their type does.
  mlir::Value counted(mlir::Value value, int64_t number, bool adds) {
    const auto type = static_tensor(value);
    const auto element = builder_.getIntegerAttr(type.getElementType(), number);
    const auto named = mlir::NamedAttribute(builder_.getStringAttr("value"),
                                            mlir::DenseElementsAttr::get(type, mlir::Attribute(element)));
    mlir::Operation* const constant = build(builder_, value.getLoc(), "stablehlo.constant", {}, type, {named});
    return build(builder_, value.getLoc(), adds ? "stablehlo.add" : "stablehlo.subtract",
                 {constant->getResult(0), value}, type)
        ->getResult(0);
  }

  // Collects the operations that compute a value, and makes their arguments known.
  void collect(mlir::Value value) {
    std::vector<mlir::Value> pending = {value};
    while (!pending.empty()) {
      mlir::Value each = pending.back();
      pending.pop_back();
      if (known_.contains(each) || each.getParentBlock() != &forward_.body()) {
        continue;
      }
      if (mlir::Operation* op = each.getDefiningOp()) {
        if (operations_.insert(op)) {
          op->walk([&](mlir::Operation* inner) { llvm::append_range(pending, inner->getOperands()); });
        }
      } else {
        known_.map(each, invariant(mlir::cast<mlir::BlockArgument>(each).getArgNumber()));
      }
    }
  }

  // The argument of the second loop for what the first one carries unchanged.
  mlir::Value invariant(unsigned of_first) {
    const mlir::Value start = forward_.op()->getOperand(of_first);
    for (const auto [carry, operand] : llvm::enumerate(backward_.op()->getOperands())) {
      if (operand == start && backward_.is_invariant(static_cast<unsigned>(carry))) {
        return backward_.argument(static_cast<unsigned>(carry));
      }
    }
    invariants_.push_back(start);
    return backward_.body().addArgument(start.getType(), start.getLoc());
  }

  void copy_operations() {
    for (const auto [i, op] : llvm::enumerate(forward_.body())) {
      if (operations_.contains(&op) && is_annotation(&op)) {
        known_.map(op.getResult(0), known_.lookupOrDefault(op.getOperand(0)));
      } else if (operations_.contains(&op)) {
        mlir::Operation* const copy = builder_.clone(op, known_);
        if (is_dot(copy)) {
          copy->setDiscardableAttr(kRepeated, builder_.getI64IntegerAttr(first_ + static_cast<int64_t>(i)));
        }
      }
    }
  }

  Loop forward_;
  Loop backward_;
  mlir::OpBuilder builder_;                  // behind what was moved to the beginning of the second loop's body
  int64_t first_;                            // the number of the first loop's first operation
  llvm::DenseSet<mlir::Operation*> except_;  // of the first loop
  Numbers iterations_;                       // of the first loop, for each iteration of the second one
  std::vector<Read> reads_;
  std::vector<std::pair<mlir::Value, Numbers>> counters_;  // of the second loop
  mlir::IRMapping known_;                                  // from the first loop's body to the second one's
  llvm::DenseMap<mlir::Value, bool> computable_;
  llvm::SetVector<mlir::Operation*> operations_;  // that the second loop will have, too
  llvm::SmallVector<mlir::Value> invariants_;     // that the second loop will carry, too
};

}  // namespace

bool is_product_of_attention(mlir::Operation* op) {
  return is_dot(op) && (is_near_softmax(op->getResult(0)) || weighs_values(op));
}

bool is_of_attention(mlir::Value value) { return is_near_softmax_or_behind(value, is_product_of_attention); }

bool is_factor_of_scores(mlir::Value value) {
  const auto type = static_tensor(value);
  if (!type || !mlir::isa<mlir::FloatType>(type.getElementType())) {
    return false;
  }
  for (mlir::Value source = reshaped(value); source; source = reshaped(value)) {
    value = source;  // loops store entries with a dimension of size 1
  }
  std::vector<mlir::Value> pending = {value};
  while (!pending.empty()) {
    const mlir::Value each = pending.back();
    pending.pop_back();
    for (mlir::Operation* user : each.getUsers()) {
      if (kind(user) == OpKind::kMultiply && is_near_softmax(user->getResult(0))) {
        return true;
      }
      if (kind(user) == OpKind::kBroadcastInDim || kind(user) == OpKind::kReshape || kind(user) == OpKind::kTranspose ||
          kind(user) == OpKind::kConvert) {
        pending.push_back(user->getResult(0));
      }
    }
  }
  return false;
}

bool reads_earlier_loop(mlir::Operation* op) {
  return kind(op) == OpKind::kWhile &&
         llvm::any_of(op->getOperands(), [](mlir::Value operand) { return !!result_of_loop(operand); });
}

mlir::Operation* compute_residuals_again(mlir::Operation* backward, int64_t first, const std::set<int64_t>& except) {
  if (!reads_earlier_loop(backward) || has_annotated_results(backward)) {
    return nullptr;
  }
  llvm::SetVector<mlir::Operation*> earlier;
  for (const mlir::Value operand : backward->getOperands()) {
    const mlir::OpResult source = result_of_loop(operand);
    if (source && source.getOwner()->getBlock() == backward->getBlock()) {
      earlier.insert(source.getOwner());
    }
  }
  mlir::Operation* changed = nullptr;
  for (mlir::Operation* loop : earlier) {
    auto forward = Loop::read(loop);
    auto reader = Loop::read(changed != nullptr ? changed : backward);
    if (forward && reader && forward->iterations() > 0 && reader->iterations() > 0) {
      mlir::Operation* const now = LoopPair(*std::move(forward), *std::move(reader), first, except).run();
      changed = now != nullptr ? now : changed;
    }
    first += static_cast<int64_t>(llvm::range_size(block(loop, 1)));
  }
  return changed;
}

}  // namespace flashlift::stablehlo
