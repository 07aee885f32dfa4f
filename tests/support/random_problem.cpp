#include "support/random_problem.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "flashlift/block_mask.h"
#include "flashlift/builder.h"
#include "problem/features.h"
#include "score/operation.h"

namespace flashlift::testing {
namespace {

int64_t draw(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

template <typename T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[draw(random, 0, static_cast<int64_t>(choices.size()) - 1)];
}

class ProgramDrawer {
 public:
  ProgramDrawer(ProgramKind kind, const Problem& sizes, Random& random)
      : builder_(kind), kind_(kind), sizes_(sizes), random_(random) {}

  Program draw_score_mod() { return finish(score(3)); }
  Program draw_mask_mod() { return finish(condition(3)); }

 private:
  int64_t pick(int64_t low, int64_t high) { return draw(random_, low, high); }

  Program finish(Expr result) {
    Result<Program> program = builder_.finish(result);
    if (!program.ok()) {
      std::cerr << "the program generator made a malformed program: " << program.error().message << "\n";
      std::abort();
    }
    return *program;
  }

  Expr real(float value) { return builder_.constant(Type::kF32, std::bit_cast<int32_t>(value)); }
  Expr integer(int64_t value) { return builder_.constant(Type::kI32, value); }
  Expr apply(Op op, std::initializer_list<Expr> x) { return builder_.apply(op, x); }
  Expr to_real(Expr x) { return builder_.convert(x, Type::kF32); }

  Expr coordinate() {
    return builder_.input(
        one_of(random_, {Op::k_b, Op::k_h, Op::k_q, Op::k_q, Op::k_kv, Op::k_kv, Op::k_kv, Op::k_q_len, Op::k_kv_len}));
  }

  // A random i32.
  Expr index(int depth) {
    if (depth <= 0) {
      return pick(0, 4) == 0 ? integer(pick(-9, 300)) : coordinate();
    }
    switch (pick(0, 15)) {
      case 0:
      case 1:
      case 2:
        return coordinate();
      case 3:
        return apply(Op::k_add, {index(depth - 1), index(depth - 1)});
      case 4:
        return apply(Op::k_sub, {builder_.input(Op::k_kv), builder_.input(Op::k_q)});
      case 5:
        return apply(Op::k_sub, {index(depth - 1), index(depth - 1)});
      case 6:
        return apply(Op::k_mul, {index(depth - 1), integer(pick(-3, 5))});
      case 7:
        return apply(one_of(random_, {Op::k_div, Op::k_rem, Op::k_floor_div, Op::k_mod}),
                     {index(depth - 1), pick(0, 2) == 0 ? index(depth - 1) : integer(pick(1, 64))});
      case 8:
        return apply(one_of(random_, {Op::k_min, Op::k_max}), {index(depth - 1), index(depth - 1)});
      case 9:
        return apply(one_of(random_, {Op::k_neg, Op::k_abs, Op::k_sign, Op::k_not}), {index(depth - 1)});
      case 10:
        return apply(one_of(random_, {Op::k_and, Op::k_or, Op::k_xor}), {index(depth - 1), index(depth - 1)});
      case 11:
        return apply(one_of(random_, {Op::k_shl, Op::k_shr, Op::k_ushr}), {index(depth - 1), integer(pick(0, 9))});
      case 12:
        return apply(Op::k_select, {condition(depth - 1), index(depth - 1), index(depth - 1)});
      case 13: {
        const Expr wide = builder_.convert(index(depth - 1), Type::kI64);
        const Expr other = builder_.convert(index(depth - 1), Type::kI64);
        const Op op = one_of(random_, {Op::k_add, Op::k_sub, Op::k_mul, Op::k_min, Op::k_max, Op::k_rem, Op::k_xor});
        return builder_.convert(builder_.apply(op, {wide, other}), Type::kI32);
      }
      case 14:
        return builder_.convert(condition(depth - 1), Type::kI32);
      default:
        return builder_.convert(
            load(one_of(random_, {DType::kI8, DType::kU8, DType::kI16, DType::kI32, DType::kU32, DType::kI64}), depth),
            Type::kI32);
    }
  }

  // A random i1.
  Expr condition(int depth) {
    const Op compare = one_of(random_, {Op::k_eq, Op::k_ne, Op::k_lt, Op::k_le, Op::k_gt, Op::k_ge});
    if (depth <= 0) {
      return apply(compare, {coordinate(), index(0)});
    }
    switch (pick(0, 9)) {
      case 0:
        return apply(Op::k_le, {builder_.input(Op::k_kv), builder_.input(Op::k_q)});
      case 1:
      case 2:
        return apply(compare, {index(depth - 1), index(depth - 1)});
      case 3:
      case 4:
        return apply(one_of(random_, {Op::k_and, Op::k_or, Op::k_or, Op::k_xor}),
                     {condition(depth - 1), condition(depth - 1)});
      case 5:
        return apply(Op::k_not, {condition(depth - 1)});
      case 6:
        return apply(Op::k_select, {condition(depth - 1), condition(depth - 1), condition(depth - 1)});
      case 7:
        return apply(one_of(random_, {Op::k_lt, Op::k_ge}), {exact(depth - 1), exact(depth - 1)});
      case 8:
        return builder_.convert(index(depth - 1), Type::kI1);
      default:
        return load(DType::kBool, depth);
    }
  }

  // A random f32 without rounding errors: a stored value, or an integer times a power of two.
  Expr exact(int depth) {
    switch (pick(0, 5)) {
      case 0:
        return load(one_of(random_, {DType::kF16, DType::kBF16, DType::kF32}), depth);
      case 1:
        return apply(Op::k_round_bf16, {load(DType::kF32, depth)});
      case 2:
        return apply(Op::k_round_f16, {load(DType::kF32, depth)});
      case 3: {
        const Op op = one_of(random_, {Op::k_floor, Op::k_ceil, Op::k_round_even, Op::k_sign, Op::k_abs, Op::k_neg});
        return builder_.apply(op, {load(DType::kF32, depth)});
      }
      default: {
        // Limited, so that the conversion is exact.
        const Expr limited = apply(Op::k_max, {apply(Op::k_min, {index(depth), integer(5000)}), integer(-5000)});
        return apply(Op::k_mul, {to_real(limited), real(one_of(random_, {1.0f, 0.5f, 0.25f, -0.125f}))});
      }
    }
  }

  // A random f32 of moderate size, independent of the score.
  Expr bias(int depth) {
    if (depth <= 0) {
      return limited(exact(0));
    }
    switch (pick(0, 8)) {
      case 0:
        return limited(load(DType::kF64, depth));
      case 1:
        return limited(apply(Op::k_add, {bias(depth - 1), bias(depth - 1)}));
      case 2:
        return limited(apply(Op::k_mul, {bias(depth - 1), real(static_cast<float>(pick(-20, 20)) * 0.1f)}));
      case 3:
        return apply(Op::k_select, {condition(depth - 1), bias(depth - 1), bias(depth - 1)});
      case 4:
        return apply(Op::k_div, {bias(depth - 1), positive(depth - 1)});
      case 5:
        return apply(Op::k_pow, {positive(depth - 1), real(0.75f)});
      case 6:
      case 7:
        return function(depth - 1);
      default:
        return limited(exact(depth));
    }
  }

  Expr positive(int depth) { return apply(Op::k_add, {apply(Op::k_abs, {bias(depth)}), real(0.5f)}); }

  // A random function of f32, with operands in the range where its values and slopes are moderate, according to its
  // row.
  Expr function(int depth) {
    std::vector<Op> functions;
    for (int i = 0; i < kOpCount; ++i) {
      if (score::operation(static_cast<Op>(i)).domain != score::Domain::kNotDrawn) {
        functions.push_back(static_cast<Op>(i));
      }
    }
    const Op op = functions[static_cast<size_t>(pick(0, static_cast<int64_t>(functions.size()) - 1))];
    std::vector<Expr> operands;
    for (int i = 0; i < info(op).arity; ++i) {
      operands.push_back(in_domain(score::operation(op).domain, depth));
    }
    return limited(builder_.apply(op, operands));
  }

  Expr in_domain(score::Domain domain, int depth) {
    switch (domain) {
      case score::Domain::kPositive:
        return positive(depth);
      case score::Domain::kNegative:
        return apply(Op::k_neg, {apply(Op::k_abs, {bias(depth)})});
      case score::Domain::kUnit:
        return apply(Op::k_mul, {apply(Op::k_tanh, {bias(depth)}), real(0.75f)});
      case score::Domain::kAnywhere:
      case score::Domain::kNotDrawn:
        break;
    }
    return bias(depth);
  }

  Expr limited(Expr x) { return apply(Op::k_max, {apply(Op::k_min, {x, real(6.0f)}), real(-6.0f)}); }

  Expr score(int depth) {
    const Expr input = builder_.input(Op::k_score);
    if (depth <= 0) {
      return input;
    }
    switch (pick(0, 9)) {
      case 0:
        return input;
      case 1:
      case 2:
        return apply(Op::k_add, {score(depth - 1), bias(depth)});
      case 3: {
        const float cap = static_cast<float>(pick(2, 50));
        return apply(Op::k_mul, {apply(Op::k_tanh, {apply(Op::k_div, {score(depth - 1), real(cap)})}), real(cap)});
      }
      case 4:
        return apply(Op::k_select, {condition(depth), score(depth - 1), score(depth - 1)});
      case 5: {
        const float masked = one_of(random_, {-INFINITY, -1e30f, -3.4028235e38f, -2.3819763e38f});
        return apply(Op::k_select, {condition(depth), score(depth - 1), real(masked)});
      }
      case 6:
        return apply(Op::k_max, {score(depth - 1), real(-4.0f)});
      case 7:
        return apply(Op::k_mul, {apply(Op::k_sigmoid, {score(depth - 1)}), real(4.0f)});
      case 8:
        return apply(Op::k_abs, {score(depth - 1)});
      default:
        return apply(Op::k_mul, {score(depth - 1), apply(Op::k_sigmoid, {bias(depth - 1)})});
    }
  }

  Expr load(DType dtype, int depth) {
    if (captures_.size() < 5) {
      Capture capture{(kind_ == ProgramKind::kScoreMod ? "s" : "m") + std::to_string(captures_.size()), dtype, {}};
      const int64_t rank = pick(0, 9) == 0 ? pick(3, 5) : pick(0, 2);
      int64_t elements = 1;
      for (int64_t d = 0; d < rank; ++d) {
        int64_t size = one_of<int64_t>(
            random_, {1, 3, 16, 40, sizes_.kv_len, sizes_.q_len, sizes_.q_heads, sizes_.batch, sizes_.kv_len + 5, -1});
        size = size == 0 ? 2 : size;
        size = elements * size > 100000 ? 3 : size;
        elements *= std::max<int64_t>(size, 1);
        capture.shape.push_back(size);
      }
      captures_.push_back(capture);
    }
    // An existing tensor of the same dtype, or the new one.
    std::vector<const Capture*> fitting;
    for (const Capture& capture : captures_) {
      if (capture.dtype == dtype) {
        fitting.push_back(&capture);
      }
    }
    if (fitting.empty()) {
      return zero_of(dtype);
    }
    const Capture capture = *fitting[static_cast<size_t>(pick(0, static_cast<int64_t>(fitting.size()) - 1))];
    std::vector<Expr> indices;
    for (size_t d = 0; d < capture.shape.size(); ++d) {
      switch (pick(0, 3)) {
        case 0:
          indices.push_back(builder_.input(Op::k_kv));
          break;
        case 1: {
          const Expr distance = apply(Op::k_sub, {builder_.input(Op::k_kv), builder_.input(Op::k_q)});
          indices.push_back(
              apply(Op::k_add, {pick(0, 1) == 0 ? distance : apply(Op::k_neg, {distance}), integer(pick(0, 40))}));
          break;
        }
        case 2:
          indices.push_back(coordinate());
          break;
        default:
          indices.push_back(index(depth - 1));
          break;
      }
      if (pick(0, 5) == 0) {
        indices.back() = builder_.convert(indices.back(), Type::kI64);
      }
    }
    return builder_.load(capture, indices);
  }

  Expr zero_of(DType dtype) { return builder_.constant(scalar_type(dtype), 0); }

  ProgramBuilder builder_;
  ProgramKind kind_;
  const Problem& sizes_;
  Random& random_;
  std::vector<Capture> captures_;
};

int64_t draw_length(Random& random) {
  switch (draw(random, 0, 9)) {
    case 0:
      return draw(random, 0, 2);
    case 1:
    case 2:
      return draw(random, 120, 300);
    case 3:
      return one_of<int64_t>(random, {64, 128, 256});
    default:
      return draw(random, 1, 100);
  }
}

int64_t draw_dim(Random& random) {
  switch (draw(random, 0, 3)) {
    case 0:
      return one_of<int64_t>(random, {64, 128, 80, 96, 256, 32});
    case 1:
      return draw(random, 1, 256);
    default:
      return draw(random, 1, 40);
  }
}

void expect_ok(const Status& status) {
  if (!status.ok()) {
    throw std::logic_error(status.error().message);
  }
}

std::string draw_value(const problem::Feature& row, Random& random) {
  const problem::Value& value = row.word.value;
  const auto number = [&] { return std::to_string(draw(random, row.drawn.low, row.drawn.high)); };
  switch (value.kind) {
    case problem::Value::Kind::kNone:
      return "";
    case problem::Value::Kind::kChoice: {
      std::vector<std::string_view> words = problem::choices(value);
      if (value.is_optional) {
        words.emplace_back("");
      }
      return std::string(words[static_cast<size_t>(draw(random, 0, static_cast<int64_t>(words.size()) - 1))]);
    }
    case problem::Value::Kind::kWhole:
    case problem::Value::Kind::kReal:
      return number();
    case problem::Value::Kind::kPair: {
      const std::string left = number();
      return left + "," + number();
    }
  }
  return "";
}

// Any combination of the named features, applied before the problem's own programs.
void draw_features(Problem& p, Random& random) {
  problem::GivenFeatures features;
  for (const problem::Feature& row : problem::features()) {
    if (draw(random, 0, row.drawn.once_in - 1) == 0 && !(row.drawn.in_16_bits_only && p.dtype == DType::kF32)) {
      problem::GivenFeatures more = features;
      expect_ok(more.add(row, draw_value(row, random)));
      features = more.verify().ok() ? more : features;
    }
  }
  expect_ok(features.apply(p));
}

// Block lists with a block size of their own. Which blocks are skipped, partial or full is drawn with the other
// tensors.
void draw_block_lists(Problem& p, Random& random) {
  BlockKinds kinds;
  kinds.q_block = one_of<int64_t>(random, {1, 16, 40, 128});
  kinds.kv_block = one_of<int64_t>(random, {1, 16, 40, 128});
  kinds.shape = {one_of<int64_t>(random, {1, p.batch}), one_of<int64_t>(random, {1, p.q_heads}),
                 (p.q_len + kinds.q_block - 1) / kinds.q_block, (p.kv_len + kinds.kv_block - 1) / kinds.kv_block};
  kinds.kinds.resize(static_cast<size_t>(kinds.shape[0] * kinds.shape[1] * kinds.shape[2] * kinds.shape[3]));
  expect_ok(restrict_to_blocks(kinds, p));
}

}  // namespace

Program draw_program(ProgramKind kind, const Problem& sizes, Random& random) {
  ProgramDrawer drawer(kind, sizes, random);
  return kind == ProgramKind::kScoreMod ? drawer.draw_score_mod() : drawer.draw_mask_mod();
}

Problem draw_problem(Random& random) {
  Problem p;
  p.batch = draw(random, 1, 2);
  p.kv_heads = draw(random, 1, 3);
  p.q_heads = p.kv_heads * one_of<int64_t>(random, {1, 1, 2, 3, 4});
  p.q_len = draw_length(random);
  p.kv_len = draw(random, 0, 15) == 0 ? draw(random, 1000, 2500) : draw_length(random);
  p.head_dim = draw_dim(random);
  p.value_dim = draw(random, 0, 1) == 0 ? p.head_dim : draw_dim(random);
  // The oracle computes every score: keep each problem to a few milliseconds.
  const auto work = [&] { return p.batch * p.q_heads * p.q_len * p.kv_len * (p.head_dim + p.value_dim + 40); };
  while (work() > 1'500'000 && p.q_len > 4) {
    p.q_len = (p.q_len + 1) / 2;
  }
  p.dtype = one_of(random, {DType::kF32, DType::kF32, DType::kBF16, DType::kF16});
  p.out_dtype = draw(random, 0, 3) == 0 ? one_of(random, {DType::kF32, DType::kBF16, DType::kF16}) : p.dtype;
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  if (draw(random, 0, 3) == 0) {
    p.scale *= static_cast<float>(draw(random, -3, 3)) * 0.5f;
  }
  if (draw(random, 0, 9) < 6) {
    p.score_mod = draw_program(ProgramKind::kScoreMod, p, random);
  }
  if (draw(random, 0, 9) < 6) {
    p.mask_mod = draw_program(ProgramKind::kMaskMod, p, random);
  }
  if (draw(random, 0, 2) == 0) {
    draw_features(p, random);
  }
  p.captures = *collect_captures(p.score_mod, p.mask_mod);
  if (p.q_len > 0 && p.kv_len > 0 && draw(random, 0, 7) == 0) {
    draw_block_lists(p, random);
  }
  p.sinks = draw(random, 0, 4) == 0 ? draw(random, 1, 3) : 0;
  p.empty_rows = one_of(random, {EmptyRows::kZero, EmptyRows::kUniform, EmptyRows::kNan});
  p.want_lse = draw(random, 0, 1) == 0;
  p.normalize = draw(random, 0, 7) != 0;
  p.want_row_max = draw(random, 0, 3) == 0;
  if (draw(random, 0, 4) == 0) {
    p.keep_mask = draw(random, 0, 2) == 0;
    p.dropout = p.keep_mask && draw(random, 0, 1) == 0 ? 0.0f : one_of(random, {0.1f, 0.5f, 0.9f, 1.0f / 3.0f});
    p.dropout_words = !p.keep_mask && draw(random, 0, 1) == 0;
  }
  return p;
}

}  // namespace flashlift::testing
