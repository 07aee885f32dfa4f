#include "stablehlo/lift/candidates.h"

#include <algorithm>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

int64_t summed_elements(mlir::Operation* product) {
  int64_t count = 1;
  if (!is_product(product)) {
    return count;
  }
  const auto dims = *dot_dims(product);
  for (const int64_t d : dims.lhs_contract) {
    count *= shape(product->getOperand(0))[static_cast<size_t>(d)];
  }
  return count;
}

// Whether an operation sums its operand: a reduction, a running sum, or a product with a constant of equal elements.
bool sums(mlir::Operation* op) {
  switch (kind(op)) {
    case OpKind::kReduce: {
      const auto how = reduction(op);
      return how && how->reducer == Reducer::kAdd;
    }
    case OpKind::kReduceWindow:
      return reducer(block(op)) == Reducer::kAdd;
    case OpKind::kDot:
    case OpKind::kDotGeneral:
      return side_summed_by_product(op).has_value();
    default:
      return false;
  }
}

// Whether a sum is a divisor or the argument of a logarithm, in any shape and with any guard.
bool divides(mlir::Operation* sum) {
  constexpr size_t kFarthest = 50;
  return any_operation({sum}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* const user = use.getOwner();
      switch (kind(user)) {
        case OpKind::kDivide:
          if (use.getOperandNumber() == 1) {
            return true;
          }
          break;
        case OpKind::kLog:
          return true;
        case OpKind::kAdd:
        case OpKind::kMaximum:
        case OpKind::kSelect:
        case OpKind::kConvert:
        case OpKind::kReshape:
        case OpKind::kTranspose:
        case OpKind::kBroadcastInDim:
          stack.push_back(user);
          break;
        default:
          break;
      }
    }
    return false;
  });
}

// The exponent of an exponential or a power.
mlir::Value exponent_of(mlir::Operation* exponential) {
  return exponential->getOperand(exponential->getNumOperands() - 1);
}

// Whether the exponential is e^(-x²), the derivative of erf, which gradients of biases sum.
bool is_bell(mlir::Operation* exponential) {
  mlir::Operation* const negative = defining(exponent_of(exponential), OpKind::kNegate);
  mlir::Operation* const square = negative != nullptr ? negative->getOperand(0).getDefiningOp() : nullptr;
  return square != nullptr && (kind(square) == OpKind::kChloSquare ||
                               (kind(square) == OpKind::kMultiply && square->getOperand(0) == square->getOperand(1)));
}

// Whether each number of a smaller tensor is repeated, as a row's number is for its keys.
bool is_spread(mlir::Value value) {
  mlir::Operation* const broadcast = defining(value, OpKind::kBroadcastInDim);
  return broadcast != nullptr && static_tensor(broadcast->getOperand(0)) &&
         static_tensor(broadcast->getOperand(0)).getNumElements() > 1 && !splat(broadcast->getOperand(0));
}

// Whether the exponential is e^-x + 1 of a sigmoid, log(1 + e^x) of softplus, e^(x - y), with another y for each x, of
// softplus's derivative, or the derivative of (e^x - 1) of elu.
bool is_of_gate(mlir::Operation* exponential) {
  mlir::Operation* const difference = defining(exponent_of(exponential), OpKind::kSubtract);
  return (difference != nullptr && !splat(difference->getOperand(1)) && !is_spread(difference->getOperand(1))) ||
         llvm::any_of(exponential->getUses(),
                      [](mlir::OpOperand& use) {
                        mlir::Operation* const user = use.getOwner();
                        return kind(user) == OpKind::kLogPlusOne ||
                               (kind(user) == OpKind::kAdd && splat(user->getOperand(1 - use.getOperandNumber())));
                      }) ||
         llvm::any_of(exponent_of(exponential).getUsers(),
                      [](mlir::Operation* user) { return kind(user) == OpKind::kExponentialMinusOne; });
}

// Whether the exponential is summed before the next product. That of a softmax is. That of an activation (erf, sigmoid,
// softplus) is not, and the report need not mention it. Its gradient may be summed for a bias, but divides nothing.
bool is_summed(mlir::Operation* exponential) {
  const bool must_divide = is_bell(exponential) || is_of_gate(exponential);
  constexpr size_t kFarthest = 500;  // operations between the exponential and its sum
  return any_operation({exponential}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    if (!is_dot(op)) {
      stack.insert(stack.end(), op->user_begin(), op->user_end());
    }
    return sums(op) && (!must_divide || divides(op));
  });
}

bool is_summed(mlir::Operation* exponential, Work& work) {
  const auto [known, is_new] = work.summed_exponentials.try_emplace(exponential);
  if (is_new) {
    known->second = is_summed(exponential);
  }
  return known->second;
}

// Whether a number of the row, such as a log-sum-exp, is subtracted in the exponent. If so, the row may sum to 1
// without a division.
bool subtracts_row(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 12;
  return any_operation({exponent_of(exponential).getDefiningOp()}, kFarthest,
                       [](mlir::Operation* op, OperationStack& stack) {
                         switch (kind(op)) {
                           case OpKind::kSubtract:
                             if (is_spread(op->getOperand(1))) {
                               return true;
                             }
                             stack.push_back(op->getOperand(0).getDefiningOp());
                             break;
                           case OpKind::kAdd:
                             for (const mlir::Value operand : op->getOperands()) {
                               mlir::Operation* const negated = defining(operand, OpKind::kNegate);
                               if (negated != nullptr && is_spread(negated->getOperand(0))) {
                                 return true;
                               }
                               stack.push_back(operand.getDefiningOp());
                             }
                             break;
                           case OpKind::kMultiply:
                           case OpKind::kDivide:
                           case OpKind::kSelect:
                           case OpKind::kConvert:
                           case OpKind::kMinimum:
                           case OpKind::kMaximum:
                           case OpKind::kReshape:
                           case OpKind::kTranspose:
                             push_definitions(op, stack);
                             break;
                           default:
                             break;
                         }
                         return false;
                       });
}

// Whether multiplication by this factor only scales or masks, unlike a gate.
bool masks(mlir::Value factor) {
  mlir::Operation* const converted = defining(factor, OpKind::kConvert);
  return splat(factor) || is_spread(factor) ||
         (converted != nullptr && dtype(converted->getOperand(0).getType()) == DType::kBool);
}

// Whether the exponential is a weight in a product, possibly scaled, masked or divided. Its row sum may be another
// product, or missing. An exponential that is added to something, as in a sigmoid, is no weight.
bool weighs(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 20;
  return !is_bell(exponential) &&
         any_operation({exponential}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
           for (mlir::OpOperand& use : op->getUses()) {
             mlir::Operation* const user = use.getOwner();
             switch (kind(user)) {
               case OpKind::kDot:
               case OpKind::kDotGeneral:
                 return true;
               case OpKind::kDivide:
               case OpKind::kSelect:
                 if (use.getOperandNumber() == (kind(user) == OpKind::kDivide ? 0 : 1)) {
                   stack.push_back(user);
                 }
                 break;
               case OpKind::kMultiply:
                 if (masks(user->getOperand(1 - use.getOperandNumber()))) {
                   stack.push_back(user);
                 }
                 break;
               case OpKind::kConvert:
               case OpKind::kReshape:
               case OpKind::kTranspose:
                 stack.push_back(user);
                 break;
               default:
                 break;
             }
           }
           return false;
         });
}

// Whether the exponent is computed from constants and positions alone, as that of rotary frequencies, base^(2i/d).
bool has_constant_exponent(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 30;
  size_t seen = 0;
  const bool reads_data = any_operation({exponential}, kFarthest + 1, [&](mlir::Operation* op, OperationStack& stack) {
    push_definitions(op, stack);
    const auto is_argument = [](mlir::Value operand) { return operand.getDefiningOp() == nullptr; };
    return ++seen > kFarthest || op->getNumRegions() > 0 || llvm::any_of(op->getOperands(), is_argument);
  });
  return !reads_data;
}

bool is_of_softmax(mlir::Operation* op, Work& work) {
  return is_exponential(op) && !has_constant_exponent(op) && (is_summed(op, work) || subtracts_row(op) || weighs(op));
}

// Whether the sum is over differences of two tensors, each repeated along the other's dimensions: |q - k|, (q - k)².
bool is_of_differences(mlir::Operation* sum) {
  constexpr size_t kFarthest = 8;
  const auto elementwise = [](mlir::Value value) {
    mlir::Operation* const op = value.getDefiningOp();
    return op != nullptr && is_elementwise(op) ? op : nullptr;
  };
  return sums(sum) && sum->getNumOperands() > 0 &&
         any_operation({elementwise(sum->getOperand(0))}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
           for (const mlir::Value operand : op->getOperands()) {
             stack.push_back(elementwise(operand));
           }
           return kind(op) == OpKind::kSubtract && is_spread(op->getOperand(0)) && is_spread(op->getOperand(1));
         });
}

// Pushes what an operation copies, scales or adds. Returns false, so that a walk goes on.
bool push_terms(mlir::Operation* op, OperationStack& stack) {
  switch (kind(op)) {
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kNegate:
    case OpKind::kMultiply:
    case OpKind::kDivide:
    case OpKind::kSelect:
    case OpKind::kConvert:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kBroadcastInDim:
      push_definitions(op, stack);
      break;
    default:
      break;
  }
  return false;
}

// Whether a value has one number, or a few, in each row: ids that are compared with positions, or scattered numbers.
bool is_of_targets(mlir::Value value) {
  constexpr size_t kFarthest = 30;
  const auto is_iota = [](mlir::Value operand) {
    return any_operation({operand.getDefiningOp()}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
      return kind(op) == OpKind::kIota || push_terms(op, stack);
    });
  };
  return any_operation({value.getDefiningOp()}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    if (kind(op) == OpKind::kCompare) {
      return is_iota(op->getOperand(0)) != is_iota(op->getOperand(1));
    }
    return kind(op) == OpKind::kScatter || push_terms(op, stack);
  });
}

bool is_fused_attention(mlir::Operation* op) {
  const auto call = custom_call(op);
  return call && call->target.starts_with("flashlift.");
}

// A single walk over the module, so that a module without attention costs no more. A search from each product could
// visit the whole module each time.
llvm::DenseSet<mlir::Operation*> find_without_softmax(mlir::Operation* module, Work& work) {
  std::vector<mlir::Operation*> stack;
  module->walk([&](mlir::Operation* op) {
    if (is_of_softmax(op, work)) {
      stack.push_back(op);
    }
  });
  llvm::DenseSet<mlir::Operation*> behind;
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (is_dot(op) || is_fused_attention(op) || !behind.insert(op).second) {
      continue;
    }
    stack.insert(stack.end(), op->user_begin(), op->user_end());
    if (kind(op) == OpKind::kReturn) {
      stack.push_back(op->getParentOp());
    }
  }
  llvm::DenseSet<mlir::Operation*> without;
  module->walk([&](mlir::Operation* op) {
    if (!behind.contains(op)) {
      without.insert(op);
    }
  });
  return without;
}

// Whether the exponential has a row sum of its own, and not only one of its products with other tensors of the scores,
// as the gradient by the scores has.
bool has_row_sum(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 100;
  return any_operation({exponential}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
    if (sums(op)) {
      return true;
    }
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* const user = use.getOwner();
      const bool weighs = kind(user) == OpKind::kMultiply && !masks(user->getOperand(1 - use.getOperandNumber()));
      if (!weighs && (!is_dot(user) || sums(user))) {
        stack.push_back(user);
      }
    }
    return false;
  });
}

}  // namespace

bool is_dot(mlir::Operation* op) {
  return (kind(op) == OpKind::kDotGeneral || kind(op) == OpKind::kDot) && !side_summed_by_product(op);
}

bool may_follow_softmax(mlir::Value value, Work& work) {
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr) {
    return false;
  }
  if (!work.without_softmax) {
    mlir::Operation* module = op;
    while (module->getParentOp() != nullptr) {
      module = module->getParentOp();
    }
    work.without_softmax = find_without_softmax(module, work);
  }
  return !work.without_softmax->contains(op);
}

Chain chain_behind(mlir::Value value, Work& work) {
  constexpr int64_t kOperationsAStep = 8;
  Chain chain;
  llvm::DenseSet<mlir::Operation*> seen;
  llvm::DenseSet<mlir::Value> barriers;
  std::vector<mlir::Value> stack{value};
  const auto is_of_too_many = [&] { return chain.has_softmax && chain.products.size() > kMostFirstProducts; };
  while (!stack.empty() && seen.size() < kLongestChain && !is_of_too_many()) {
    const auto result = llvm::dyn_cast<mlir::OpResult>(stack.back());
    stack.pop_back();
    if (!result) {
      continue;
    }
    mlir::Operation* op = result.getOwner();
    const OpKind what = kind(op);
    if (what == OpKind::kOptimizationBarrier) {  // its results have nothing to do with each other
      if (barriers.insert(result).second) {
        stack.push_back(op->getOperand(result.getResultNumber()));
      }
      continue;
    }
    const bool has_branches = what == OpKind::kCase || what == OpKind::kIf;
    for (unsigned i = 0; i < op->getNumRegions() && (has_branches || what == OpKind::kWhile); ++i) {
      mlir::Block& body = block(op, i);
      mlir::Operation* const end = body.empty() ? nullptr : &body.back();
      if (end != nullptr && kind(end) == OpKind::kReturn && result.getResultNumber() < end->getNumOperands()) {
        stack.push_back(end->getOperand(result.getResultNumber()));
      }
    }
    if (!seen.insert(op).second) {
      continue;
    }
    if (is_dot(op)) {
      chain.products.push_back(op);
      continue;
    }
    if (what == OpKind::kCustomCall && is_fused_attention(op)) {
      continue;
    }
    if (what == OpKind::kExponential || what == OpKind::kPower) {
      chain.exponentials.push_back(op);
      chain.has_softmax = chain.has_softmax || is_of_softmax(op, work);
    }
    if (chain.products.empty() && is_of_differences(op)) {  // told where there are no products
      chain.differences = op;
    }
    stack.insert(stack.end(), op->operand_begin(), op->operand_end());
  }
  chain.is_cut = !stack.empty();
  work.spend(1 + static_cast<int64_t>(seen.size()) / kOperationsAStep);
  // Of several products the one with the longest sums is taken for the scores first; others become captured tensors.
  llvm::DenseMap<mlir::Operation*, int64_t> sums;
  for (mlir::Operation* product : chain.products) {
    sums[product] = summed_elements(product);
  }
  std::stable_sort(chain.products.begin(), chain.products.end(),
                   [&](mlir::Operation* x, mlir::Operation* y) { return sums.at(x) > sums.at(y); });
  return chain;
}

bool is_gradient_of_loss(mlir::Value value) {
  constexpr size_t kFarthest = 30;
  const auto holds_exponential = [](mlir::Value operand) {
    return any_operation({operand.getDefiningOp()}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
      return is_exponential(op) || push_terms(op, stack);
    });
  };
  return any_operation({value.getDefiningOp()}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    const bool adds = kind(op) == OpKind::kAdd || kind(op) == OpKind::kSubtract;
    for (const unsigned of : {0U, 1U}) {
      if (adds && is_of_targets(op->getOperand(of)) && holds_exponential(op->getOperand(1 - of))) {
        return true;
      }
    }
    return push_terms(op, stack);
  });
}

bool is_normalised_by_row(mlir::Operation* product) {
  constexpr size_t kFarthest = 100;
  return any_operation({product->user_begin(), product->user_end()}, kFarthest,
                       [](mlir::Operation* op, OperationStack& stack) {
                         if (is_dot(op)) {
                           return false;
                         }
                         stack.insert(stack.end(), op->user_begin(), op->user_end());
                         return is_exponential(op) && subtracts_row(op) && !has_row_sum(op);
                       });
}

bool is_near_softmax(mlir::Value value) {
  constexpr size_t kFarthest = 500;
  const auto is_of_softmax = [](mlir::Operation* op) { return is_exponential(op) && is_summed(op); };
  const auto goes_on = [](mlir::Operation* op) { return !is_dot(op) && kind(op) != OpKind::kOptimizationBarrier; };
  const auto ahead = [&](mlir::Operation* op, OperationStack& stack) {
    if (goes_on(op)) {
      stack.insert(stack.end(), op->user_begin(), op->user_end());
    }
    return is_of_softmax(op);
  };
  const auto behind = [&](mlir::Operation* op, OperationStack& stack) {
    if (goes_on(op)) {
      push_definitions(op, stack);
    }
    return is_of_softmax(op);
  };
  return any_operation({value.user_begin(), value.user_end()}, kFarthest, ahead) ||
         any_operation({value.getDefiningOp()}, kFarthest, behind);
}

bool is_near_softmax_or_behind(mlir::Value value, llvm::function_ref<bool(mlir::Operation*)> is_wanted) {
  constexpr size_t kFarthest = 500;
  return is_near_softmax(value) ||
         any_operation({value.getDefiningOp()}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
           if (is_dot(op)) {
             return is_wanted(op);
           }
           push_definitions(op, stack);
           return false;
         });
}

}  // namespace flashlift::stablehlo
