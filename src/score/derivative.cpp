#include "score/derivative.h"

#include <bit>
#include <cmath>
#include <optional>

#include "score/derivative_rules.h"
#include "score/operation.h"
#include "score/simplify.h"

namespace flashlift::score {
namespace {

class Differentiator;

bool depends_on_select(const Program& program, ValueId value) {
  std::vector<bool> is_needed(value + 1);
  is_needed[value] = true;
  for (ValueId id = value + 1; id-- > 0;) {  // operands come before the nodes that use them
    if (is_needed[id]) {
      if (program.nodes[id].op == Op::k_select) {
        return true;
      }
      for (const ValueId operand : program.nodes[id].operands) {
        is_needed[operand] = true;
      }
    }
  }
  return false;
}

// A value of the program that is differentiated, or a number without a node.
struct Symbol {
  Differentiator* owner = nullptr;
  ValueId id = 0;
  double number = 0;

  Symbol(double value) : number(value) {}  // NOLINT(google-explicit-constructor): rules mix both
  Symbol(Differentiator* of, ValueId value) : owner(of), id(value) {}
};
struct Condition {
  Differentiator* owner;
  ValueId id;
};

Symbol operation(Op op, const Symbol& x);
Symbol operation(Op op, const Symbol& x, const Symbol& y);
Condition comparison(Op op, const Symbol& x, const Symbol& y);

// The functions and operators that the rules in flashlift/ops.def use; see derivative_rules.h.
Symbol operator+(const Symbol& x, const Symbol& y) { return operation(Op::k_add, x, y); }
Symbol operator-(const Symbol& x, const Symbol& y) { return operation(Op::k_sub, x, y); }
Symbol operator*(const Symbol& x, const Symbol& y) { return operation(Op::k_mul, x, y); }
Symbol operator/(const Symbol& x, const Symbol& y) { return operation(Op::k_div, x, y); }
Symbol operator-(const Symbol& x) { return operation(Op::k_neg, x); }
Symbol sign(const Symbol& x) { return operation(Op::k_sign, x); }
// Declares all functions of f32.
#define FLASHLIFT_OP(...)
#define FLASHLIFT_FUNCTION(name, ...) \
  [[maybe_unused]] Symbol name(const Symbol& x) { return operation(Op::k_##name, x); }
#define FLASHLIFT_FUNCTION2(name, ...) \
  [[maybe_unused]] Symbol name(const Symbol& x, const Symbol& y) { return operation(Op::k_##name, x, y); }
#include "flashlift/ops.def"
Condition operator==(const Symbol& x, const Symbol& y) { return comparison(Op::k_eq, x, y); }
Condition operator<(const Symbol& x, const Symbol& y) { return comparison(Op::k_lt, x, y); }
Condition operator>(const Symbol& x, const Symbol& y) { return comparison(Op::k_gt, x, y); }
Condition operator>=(const Symbol& x, const Symbol& y) { return comparison(Op::k_ge, x, y); }
Condition operator&(const Condition& x, const Condition& y);
Symbol where(const Condition& condition, const Symbol& x, const Symbol& y);
Symbol truncated(const Symbol& x) { return where(x < 0.0, operation(Op::k_ceil, x), operation(Op::k_floor, x)); }

// Reverse mode: visits nodes backwards from the result. The adjoint of each f32 node is the derivative of the result
// with respect to it. Adjoints are nodes of the same program, after those that they are computed from.
class Differentiator {
 public:
  Differentiator(const Program& source, std::vector<bool> wanted)
      : body_(source), wanted_(std::move(wanted)), adjoints_(source.nodes.size()), chosen_(source.nodes.size()) {}

  Derivative run() {
    const ValueId last = body_.result;
    adjoints_[last] = constant(1);
    std::optional<ValueId> d_score;
    for (ValueId id = last + 1; id-- > 0;) {
      if (!adjoints_[id]) {
        continue;
      }
      const ValueId adjoint = *adjoints_[id];
      const Node node = body_.nodes[id];  // a copy, since adding nodes moves the others
      if (node.op == Op::k_score) {
        d_score = d_score ? add(*d_score, adjoint) : adjoint;
      } else if (node.op == Op::k_load) {
        if (wanted_[node.payload]) {
          loads_.push_back({id, adjoint});
        }
      } else {
        propagate(node, id, adjoint);
      }
    }
    return simplified(d_score ? *d_score : constant(0));
  }

  ValueId make(Op op, Type type, std::vector<ValueId> operands, int64_t payload = 0) {
    body_.nodes.push_back({.op = op, .type = type, .operands = std::move(operands), .payload = payload});
    return static_cast<ValueId>(body_.nodes.size() - 1);
  }
  ValueId id_of(const Symbol& x) { return x.owner != nullptr ? x.id : constant(static_cast<float>(x.number)); }

 private:
  Derivative simplified(ValueId d_score) {
    std::vector<ValueId> results = {d_score};
    for (const LoadDerivative& load : loads_) {
      results.push_back(load.load);
      results.push_back(load.weight);
    }
    Derivative derivative{.body = simplify(body_, results), .d_score = results[0], .loads = {}};
    derivative.selects = depends_on_select(derivative.body, derivative.d_score);
    for (size_t i = 1; i < results.size(); i += 2) {
      const ValueId weight = results[i + 1];
      derivative.loads.push_back({results[i], weight, depends_on_select(derivative.body, weight)});
    }
    return derivative;
  }

  ValueId constant(float value) { return make(Op::k_constant, Type::kF32, {}, std::bit_cast<uint32_t>(value)); }
  ValueId add(ValueId x, ValueId y) { return make(Op::k_add, Type::kF32, {x, y}); }

  void pass(ValueId to, ValueId adjoint) { adjoints_[to] = adjoints_[to] ? add(*adjoints_[to], adjoint) : adjoint; }

  void pass(ValueId to, const Symbol& adjoint) { pass(to, id_of(adjoint)); }
  void pass(ValueId, Flat) {}
  void pass(ValueId, Opaque) {}

  // The rules' expressions create nodes. Adjoints of operands that are not f32 are dropped.
  void propagate(const Node& node, ValueId result, ValueId adjoint) {
    if (node.op == Op::k_select) {
      const Condition condition{this, node.operands[0]};
      pass(node.operands[1], where(condition, Symbol(this, adjoint), 0.0));
      pass(node.operands[2], where(condition, 0.0, Symbol(this, adjoint)));
      chosen_[node.operands[1]] = chosen_[node.operands[2]] = true;
      return;
    }
    const auto is_real = [&](size_t i) {
      return i < node.operands.size() && body_.nodes[node.operands[i]].type == Type::kF32;
    };
    if (!is_real(0)) {
      return;
    }
    const Symbol x(this, node.operands[0]);
    const Symbol y(this, node.operands[is_real(1) ? 1 : 0]);
    const Symbol f(this, result);
    const Symbol g(this, adjoint);
    for (const ValueId operand : node.operands) {
      chosen_[operand] = chosen_[operand] || chosen_[result] || is_any(node.op, {Op::k_min, Op::k_max});
    }
    const bool may_be_chosen_not = chosen_[result] && may_have_infinite_slope(node);
    const auto give = [&](const Symbol& to, const auto& gradient) {
      pass(to.id, may_be_chosen_not ? where_not_zero(g, gradient) : gradient);
    };
    switch (node.op) {
#define FLASHLIFT_OP(name, arity, rule, real, integer, to_x, to_y, ...) \
  case Op::k_##name:                                                    \
    give(x, to_x);                                                      \
    if (is_real(1)) {                                                   \
      give(y, to_y);                                                    \
    }                                                                   \
    return;
#include "flashlift/ops.def"
    }
  }

  // The branch that a select does not choose has a gradient of 0, which stays 0 even if a derivative is infinite: 0 *
  // inf would be NaN.
  static Symbol where_not_zero(const Symbol& g, const Symbol& gradient) { return where(g == 0.0, 0.0, gradient); }
  static Flat where_not_zero(const Symbol&, Flat nothing) { return nothing; }
  static Opaque where_not_zero(const Symbol&, Opaque nothing) { return nothing; }

  bool may_have_infinite_slope(const Node& node) const {
    const auto is_finite_constant = [&](ValueId id) {
      const Node& operand = body_.nodes[id];
      return operand.op == Op::k_constant &&
             std::isfinite(std::bit_cast<float>(static_cast<uint32_t>(operand.payload)));
    };
    if (node.op == Op::k_mul) {
      return !is_finite_constant(node.operands[0]) && !is_finite_constant(node.operands[1]);
    }
    return !is_any(node.op, {Op::k_add, Op::k_sub, Op::k_neg, Op::k_min, Op::k_max, Op::k_to_f32, Op::k_round_bf16,
                             Op::k_round_f16, Op::k_tanh, Op::k_sigmoid, Op::k_erf});
  }

  Program body_;
  std::vector<bool> wanted_;                      // for each captured tensor
  std::vector<std::optional<ValueId>> adjoints_;  // for each node of the source
  std::vector<bool> chosen_;                      // for each node of the source: whether a select may choose it or not
  std::vector<LoadDerivative> loads_;
};

Differentiator& owner_of(const Symbol& x, const Symbol& y) { return x.owner != nullptr ? *x.owner : *y.owner; }

Symbol operation(Op op, const Symbol& x) { return {x.owner, x.owner->make(op, Type::kF32, {x.id})}; }

Symbol operation(Op op, const Symbol& x, const Symbol& y) {
  Differentiator& owner = owner_of(x, y);
  const ValueId left = owner.id_of(x);
  return {&owner, owner.make(op, Type::kF32, {left, owner.id_of(y)})};
}

Condition comparison(Op op, const Symbol& x, const Symbol& y) {
  Differentiator& owner = owner_of(x, y);
  const ValueId left = owner.id_of(x);
  return {&owner, owner.make(op, Type::kI1, {left, owner.id_of(y)})};
}

Condition operator&(const Condition& x, const Condition& y) {
  return {x.owner, x.owner->make(Op::k_and, Type::kI1, {x.id, y.id})};
}

Symbol where(const Condition& condition, const Symbol& x, const Symbol& y) {
  Differentiator& owner = *condition.owner;
  const ValueId left = owner.id_of(x);
  return {&owner, owner.make(Op::k_select, Type::kF32, {condition.id, left, owner.id_of(y)})};
}

}  // namespace

Derivative differentiate(const SimplifiedProgram& score_mod, const std::vector<bool>& wants_gradient) {
  std::vector<bool> wanted = wants_gradient;
  wanted.resize(score_mod->captures.size());
  return Differentiator(*score_mod, std::move(wanted)).run();
}

}  // namespace flashlift::score
