#include "score/derivative.h"

#include <bit>
#include <cmath>
#include <optional>

#include "score/simplify.h"

namespace flashlift::score {
namespace {

constexpr float kLn2 = 0.693147180559945309f;
constexpr float kTwoOverRootPi = 1.12837916709551257f;

// Reverse mode: walks back from the result, adding up for each f32 node what the result changes by as the node does.
// The adjoints are nodes of the same program, after those they are made of.
class Differentiator {
 public:
  Differentiator(const Program& source, std::vector<bool> wanted)
      : body_(source), wanted_(std::move(wanted)), adjoints_(source.nodes.size()) {}

  Derivative run() {
    const ValueId last = body_.result;
    adjoints_[last] = constant(1);
    std::optional<ValueId> d_score;
    for (ValueId id = last + 1; id-- > 0;) {
      if (!adjoints_[id]) {
        continue;
      }
      const ValueId adjoint = *adjoints_[id];
      const Node node = body_.nodes[id];  // a copy: new nodes move the others
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

 private:
  Derivative simplified(ValueId d_score) {
    std::vector<ValueId> results = {d_score};
    for (const LoadDerivative& load : loads_) {
      results.push_back(load.load);
      results.push_back(load.weight);
    }
    Derivative derivative{.body = simplify(body_, results), .d_score = results[0], .loads = {}};
    for (size_t i = 1; i < results.size(); i += 2) {
      derivative.loads.push_back({results[i], results[i + 1]});
    }
    return derivative;
  }

  ValueId make(Op op, Type type, std::vector<ValueId> operands, int64_t payload = 0) {
    body_.nodes.push_back({.op = op, .type = type, .operands = std::move(operands), .payload = payload});
    return static_cast<ValueId>(body_.nodes.size() - 1);
  }
  ValueId constant(float value) { return make(Op::k_constant, Type::kF32, {}, std::bit_cast<uint32_t>(value)); }
  ValueId unary(Op op, ValueId x) { return make(op, Type::kF32, {x}); }
  ValueId binary(Op op, ValueId x, ValueId y) { return make(op, Type::kF32, {x, y}); }
  ValueId add(ValueId x, ValueId y) { return binary(Op::k_add, x, y); }
  ValueId sub(ValueId x, ValueId y) { return binary(Op::k_sub, x, y); }
  ValueId mul(ValueId x, ValueId y) { return binary(Op::k_mul, x, y); }
  ValueId div(ValueId x, ValueId y) { return binary(Op::k_div, x, y); }
  ValueId compare(Op op, ValueId x, ValueId y) { return make(op, Type::kI1, {x, y}); }
  ValueId select(ValueId condition, ValueId x, ValueId y) { return make(Op::k_select, Type::kF32, {condition, x, y}); }

  void pass(ValueId to, ValueId adjoint) { adjoints_[to] = adjoints_[to] ? add(*adjoints_[to], adjoint) : adjoint; }

  void propagate(const Node& node, ValueId y, ValueId g) {
    switch (node.op) {
      // Values that no f32 operand changes continuously.
      case Op::k_score:
      case Op::k_b:
      case Op::k_h:
      case Op::k_q:
      case Op::k_kv:
      case Op::k_q_len:
      case Op::k_kv_len:
      case Op::k_constant:
      case Op::k_load:
      case Op::k_search:
      case Op::k_floor_div:
      case Op::k_mod:
      case Op::k_sign:
      case Op::k_floor:
      case Op::k_ceil:
      case Op::k_round_even:
      case Op::k_eq:
      case Op::k_ne:
      case Op::k_lt:
      case Op::k_le:
      case Op::k_gt:
      case Op::k_ge:
      case Op::k_is_finite:
      case Op::k_and:
      case Op::k_or:
      case Op::k_xor:
      case Op::k_not:
      case Op::k_shl:
      case Op::k_shr:
      case Op::k_ushr:
      case Op::k_to_i1:
      case Op::k_to_i32:
      case Op::k_to_i64:
      case Op::k_bitcast_i32:
      case Op::k_bitcast_f32:
        return;
      case Op::k_to_f32:
        if (body_.nodes[node.operands[0]].type == Type::kF32) {
          pass(node.operands[0], g);
        }
        return;
      case Op::k_round_bf16:
      case Op::k_round_f16:
        pass(node.operands[0], g);
        return;
      case Op::k_select:
        pass(node.operands[1], select(node.operands[0], g, constant(0)));
        pass(node.operands[2], select(node.operands[0], constant(0), g));
        return;
      case Op::k_add:
      case Op::k_sub:
      case Op::k_mul:
      case Op::k_div:
      case Op::k_rem:
      case Op::k_min:
      case Op::k_max:
      case Op::k_pow:
        propagate_binary(node.op, node.operands[0], node.operands[1], y, g);
        return;
      case Op::k_neg:
      case Op::k_abs:
      case Op::k_exp:
      case Op::k_exp2:
      case Op::k_expm1:
      case Op::k_log:
      case Op::k_log2:
      case Op::k_log1p:
      case Op::k_sqrt:
      case Op::k_rsqrt:
      case Op::k_tanh:
      case Op::k_sigmoid:
      case Op::k_sin:
      case Op::k_cos:
      case Op::k_erf:
        pass(node.operands[0], times_slope(node.op, node.operands[0], y, g));
        return;
    }
  }

  void propagate_binary(Op op, ValueId a, ValueId b, ValueId y, ValueId g) {
    switch (op) {
      case Op::k_add:
        pass(a, g);
        pass(b, g);
        return;
      case Op::k_sub:
        pass(a, g);
        pass(b, unary(Op::k_neg, g));
        return;
      case Op::k_mul:
        pass(a, mul(g, b));
        pass(b, mul(g, a));
        return;
      case Op::k_div:
        pass(a, div(g, b));
        pass(b, unary(Op::k_neg, mul(g, div(y, b))));
        return;
      case Op::k_rem: {  // x - trunc(x / y) * y
        const ValueId quotient = div(a, b);
        const ValueId truncated =
            select(compare(Op::k_lt, quotient, constant(0)), unary(Op::k_ceil, quotient), unary(Op::k_floor, quotient));
        pass(a, g);
        pass(b, unary(Op::k_neg, mul(g, truncated)));
        return;
      }
      case Op::k_min:
      case Op::k_max: {
        const ValueId half = select(compare(Op::k_eq, a, b), mul(g, constant(0.5f)), constant(0));
        const Op wins = op == Op::k_min ? Op::k_lt : Op::k_gt;
        pass(a, select(compare(wins, a, b), g, half));
        pass(b, select(compare(wins, b, a), g, half));
        return;
      }
      case Op::k_pow: {
        const ValueId zero = constant(0);
        const ValueId slope = mul(b, binary(Op::k_pow, a, sub(b, constant(1))));
        pass(a, select(compare(Op::k_eq, b, zero), zero, mul(g, slope)));
        // 0^y is 0 around any y > 0, where the formula would be 0 * -inf.
        const ValueId flat = make(Op::k_and, Type::kI1, {compare(Op::k_eq, a, zero), compare(Op::k_ge, b, zero)});
        pass(b, select(flat, zero, mul(g, mul(y, unary(Op::k_log, a)))));
        return;
      }
      default:
        return;
    }
  }

  // g * f'(x) for y = f(x)
  ValueId times_slope(Op op, ValueId x, ValueId y, ValueId g) {
    switch (op) {
      case Op::k_neg:
        return unary(Op::k_neg, g);
      case Op::k_abs:
        return mul(g, unary(Op::k_sign, x));
      case Op::k_exp:
        return mul(g, y);
      case Op::k_exp2:
        return mul(g, mul(y, constant(kLn2)));
      case Op::k_expm1:
        return mul(g, add(y, constant(1)));
      case Op::k_log:
        return div(g, x);
      case Op::k_log2:
        return div(g, mul(x, constant(kLn2)));
      case Op::k_log1p:
        return div(g, add(x, constant(1)));
      case Op::k_sqrt:
        return div(g, mul(constant(2), y));
      case Op::k_rsqrt:
        return mul(g, mul(constant(-0.5f), mul(y, mul(y, y))));
      case Op::k_tanh:
        return mul(g, sub(constant(1), mul(y, y)));
      case Op::k_sigmoid:
        return mul(g, mul(y, sub(constant(1), y)));
      case Op::k_sin:
        return mul(g, unary(Op::k_cos, x));
      case Op::k_cos:
        return unary(Op::k_neg, mul(g, unary(Op::k_sin, x)));
      default:  // erf
        return mul(g, mul(constant(kTwoOverRootPi), unary(Op::k_exp, unary(Op::k_neg, mul(x, x)))));
    }
  }

  Program body_;
  std::vector<bool> wanted_;                      // of each captured tensor
  std::vector<std::optional<ValueId>> adjoints_;  // of the source's nodes
  std::vector<LoadDerivative> loads_;
};

}  // namespace

Derivative differentiate(const Program& score_mod, const std::vector<bool>& wants_gradient) {
  // Simplified first, so that equal loads are one, and their weights one sum.
  const Program source = simplify(score_mod);
  std::vector<bool> wanted;
  for (const Capture& capture : source.captures) {
    bool wants = false;
    for (size_t i = 0; i < wants_gradient.size(); ++i) {
      wants |= wants_gradient[i] && score_mod.captures[i].name == capture.name;
    }
    wanted.push_back(wants);
  }
  return Differentiator(source, std::move(wanted)).run();
}

}  // namespace flashlift::score
