// Whole programs over boxes: intervals contain all values of random programs, and terms that occur twice cancel.
#include "score/intervals.h"

#include <gtest/gtest.h>

#include <cmath>

#include "flashlift/builder.h"
#include "score/interpret.h"
#include "score/random_program.h"

namespace flashlift::score {
namespace {

using Domain = IntervalProgram::Domain;

Truth over(const Program& program, Range q, Range kv, std::vector<TensorView> captures = {}, int64_t length = 4096) {
  const IntervalProgram intervals(program, captures, {.q_len = length, .kv_len = length});
  std::vector<Interval> scratch;
  return truth(intervals.evaluate({.b = {0, 0}, .h = {0, 0}, .q = q, .kv = kv}, scratch));
}

template <typename F>
Program mask(F&& f) {
  return *trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) { return f(q, kv); });
}

TEST(Intervals, CausalIsDecidedHoweverItIsSpelled) {
  const std::vector<Program> spellings = {
      mask([](Expr q, Expr kv) { return kv <= q; }),
      mask([](Expr q, Expr kv) { return q - kv >= 0; }),
      mask([](Expr q, Expr kv) { return !(q < kv); }),
      mask([](Expr q, Expr kv) { return (q - kv) + 3 >= 3; }),
      mask([](Expr q, Expr kv) { return 2 * q - kv >= q; }),
      mask([](Expr q, Expr kv) { return to(Type::kI64, q) - to(Type::kI64, kv) > -1; }),
      mask([](Expr q, Expr kv) { return select(kv - q > 0, false, true); }),
      mask([](Expr q, Expr kv) { return -kv + (q << 0) - min(q, q_len() - 1) + max(q, 0) >= 0; }),
      mask([](Expr q, Expr kv) { return to(Type::kF32, q) >= to(Type::kF32, kv); }),
  };
  for (const Program& program : spellings) {
    EXPECT_EQ(over(program, {128, 255}, {0, 128}), Truth::kTrue) << print(program);
    EXPECT_EQ(over(program, {128, 255}, {128, 255}), Truth::kUnknown) << print(program);
    EXPECT_EQ(over(program, {128, 255}, {255, 300}), Truth::kUnknown) << print(program);
    EXPECT_EQ(over(program, {128, 255}, {256, 300}), Truth::kFalse) << print(program);
  }
}

TEST(Intervals, WrapAroundIsNotMistakenForOrder) {
  // kv * 2^20 wraps around for keys from 2048 on.
  const Program program = mask([](Expr, Expr kv) { return (kv << 20) >= 0; });
  EXPECT_EQ(over(program, {0, 0}, {0, 2047}), Truth::kTrue);
  EXPECT_NE(over(program, {0, 0}, {2048, 2048}), Truth::kTrue);
}

TEST(Intervals, LoadsKnowTheRangeTheyRead) {
  std::vector<int32_t> ids(4096);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i / 1000);
  }
  const Captured document("document", DType::kI32, {-1});
  const Program program = mask([&](Expr q, Expr kv) { return document(q) == document(kv); });
  const std::vector<TensorView> captures = {dense_view(ids.data(), DType::kI32, std::vector<int64_t>{4096})};
  EXPECT_EQ(over(program, {0, 999}, {0, 999}, captures), Truth::kTrue);
  EXPECT_EQ(over(program, {0, 999}, {1000, 4095}, captures), Truth::kFalse);
  EXPECT_EQ(over(program, {0, 1000}, {1000, 4095}, captures), Truth::kUnknown);
}

TEST(Intervals, OnlyElementsThatTheDomainReachesCount) {
  // A buffer with room for more batches and keys than the call has.
  std::vector<int32_t> ids(200 * 1024, 1);
  for (size_t b = 0; b < 100; ++b) {
    std::fill_n(ids.begin() + static_cast<ptrdiff_t>(b * 1024 + 8), 512, 0);
  }
  const Captured buffer("buffer", DType::kI32, {200, 1024});
  const Program program = *trace_mask_mod([&](Expr b, Expr, Expr, Expr kv) { return buffer(b, kv + 8) == 0; });
  const std::vector<TensorView> captures = {dense_view(ids.data(), DType::kI32, std::vector<int64_t>{200, 1024})};
  const auto over_keys = [&](int64_t kv_len, Range kv, Range b = {0, 99}) {
    const IntervalProgram intervals(program, captures, {.batch = 100, .q_len = 1, .kv_len = kv_len});
    std::vector<Interval> scratch;
    return truth(intervals.evaluate({.b = b, .h = {0, 0}, .q = {0, 0}, .kv = kv}, scratch));
  };
  EXPECT_EQ(over_keys(512, {0, 511}), Truth::kTrue);
  EXPECT_EQ(over_keys(600, {0, 599}), Truth::kUnknown);
  EXPECT_EQ(over_keys(1200, {512, 1199}, {50, 99}), Truth::kFalse);  // keys beyond the buffer read its last element
}

TEST(Intervals, InputsThatDoNotMatterAreNotDependedOn) {
  const Program program =
      *trace_mask_mod([](Expr b, Expr h, Expr q, Expr kv) { return ((h - h + kv) <= q) & (b < 100); });
  const IntervalProgram intervals(program, {}, {.batch = 4, .heads = 8, .q_len = 64, .kv_len = 64});
  EXPECT_FALSE(intervals.depends_on(Op::k_b));
  EXPECT_FALSE(intervals.depends_on(Op::k_h));
  EXPECT_TRUE(intervals.depends_on(Op::k_q));
  EXPECT_TRUE(intervals.depends_on(Op::k_kv));
}

// ---- captured tensors

TEST(LineBounds, GiveTheExactHullOfEveryRange) {
  std::mt19937 random(3);
  std::vector<int32_t> data(2 * 3 * 150);
  for (int32_t& value : data) {
    value = static_cast<int32_t>(random() % 1000) - 500;
  }
  const TensorView dense = dense_view(data.data(), DType::kI32, std::vector<int64_t>{2, 150, 3});
  for (const TensorView& tensor : {dense, transposed(dense, 1, 2), transposed(dense, 0, 1)}) {
    for (int dimension = 0; dimension < 3; ++dimension) {
      const LineBounds bounds(tensor, dimension);
      for (int trial = 0; trial < 300; ++trial) {
        std::array<int64_t, 3> at{};
        for (int i = 0; i < 3; ++i) {
          at[i] = static_cast<int64_t>(random() % tensor.sizes[i]);
        }
        int64_t lo = static_cast<int64_t>(random() % tensor.sizes[dimension]);
        int64_t hi = static_cast<int64_t>(random() % tensor.sizes[dimension]);
        if (lo > hi) {
          std::swap(lo, hi);
        }
        const Interval got = bounds.range(at, lo, hi);
        Interval expected = Interval::integer(1000, -1000);
        for (at[dimension] = lo; at[dimension] <= hi; ++at[dimension]) {
          const int64_t value = load_element(tensor, at).integer;
          expected = hull(Type::kI32, expected, Interval::integer(value, value));
        }
        ASSERT_EQ(got.lo, expected.lo);
        ASSERT_EQ(got.hi, expected.hi);
      }
    }
  }
}

TEST(LineBounds, KeepNanAndInfinityApart) {
  std::vector<float> data = {1, NAN, -INFINITY, -0.0f, 3, -NAN, 7, 7};
  const TensorView tensor = dense_view(data.data(), DType::kF32, std::vector<int64_t>{8});
  const LineBounds bounds(tensor, 0);
  const auto range = [&](int64_t lo, int64_t hi) { return bounds.range(std::array<int64_t, 1>{}, lo, hi); };
  EXPECT_EQ(range(0, 0).real_lo, 1);
  EXPECT_FALSE(range(0, 0).may_be_nan);
  EXPECT_TRUE(range(1, 1).may_be_nan && !range(1, 1).has_number());
  EXPECT_TRUE(range(0, 3).may_be_nan);
  EXPECT_EQ(range(0, 3).real_lo, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(range(0, 3).real_hi, 1);
  EXPECT_EQ(range(6, 7).real_lo, 7);
}

// ---- random programs

class RandomTensors {
 public:
  // One tensor of each dtype, of rank 0 to 3, some of them broadcast or transposed.
  explicit RandomTensors(std::mt19937& random) {
    constexpr std::array kDtypes = {DType::kBool, DType::kI8,  DType::kU8,   DType::kI16, DType::kI32, DType::kU32,
                                    DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
    for (const DType dtype : kDtypes) {
      const size_t rank = random() % 4;
      std::vector<int64_t> shape(rank);
      for (int64_t& size : shape) {
        size = static_cast<int64_t>(1 + random() % 40);
      }
      TensorView view = fill(random, dtype, shape);
      if (rank >= 2 && random() % 2 == 0) {
        view = transposed(view, 0, 1);
      }
      if (rank >= 1 && random() % 4 == 0) {
        view.strides[random() % rank] = 0;
      }
      views.push_back(view);
      captures.push_back(
          {std::string("t") + to_string(dtype), dtype, std::vector<int64_t>(view.shape().begin(), view.shape().end())});
    }
  }

  std::vector<TensorView> views;
  std::vector<Capture> captures;

 private:
  TensorView fill(std::mt19937& random, DType dtype, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) {
      count *= size;
    }
    storage_.emplace_back(count * size_in_bytes(dtype));
    std::vector<uint8_t>& bytes = storage_.back();
    const bool small = random() % 2 == 0;  // few different values, so that uniform stretches occur
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = small ? static_cast<uint8_t>(i % size_in_bytes(dtype) == 0 ? (i / 60) % 3 : 0)
                       : static_cast<uint8_t>(random());
    }
    return dense_view(bytes.data(), dtype, shape);
  }

  std::vector<std::vector<uint8_t>> storage_;
};

int32_t draw(std::mt19937& random, const Range& range) {
  return static_cast<int32_t>(range.lo + static_cast<int64_t>(random() % (range.hi - range.lo + 1)));
}

Range draw_range(std::mt19937& random, int64_t length) {
  int64_t lo = static_cast<int64_t>(random() % length);
  int64_t hi = std::min<int64_t>(length - 1, lo + static_cast<int64_t>(random() % 12));
  return {lo, hi};
}

class RandomPrograms : public testing::TestWithParam<ProgramKind> {};

TEST_P(RandomPrograms, NeverGiveAValueOutsideOfTheInterval) {
  std::mt19937 random(7);
  int decided = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const RandomTensors tensors(random);
    const Program program = random_program(random, {.kind = GetParam(),
                                                    .nodes = static_cast<int>(1 + random() % 30),
                                                    .floats = random() % 3 != 0,
                                                    .captures = tensors.captures});
    const Domain domain{.batch = 1 + static_cast<int64_t>(random() % 3),
                        .heads = 1 + static_cast<int64_t>(random() % 4),
                        .q_len = 1 + static_cast<int64_t>(random() % 50),
                        .kv_len = 1 + static_cast<int64_t>(random() % 50)};
    const IntervalProgram intervals(program, tensors.views, domain);
    Interpreter interpreter(program, tensors.views);
    std::vector<Interval> scratch;
    for (int box = 0; box < 6; ++box) {
      const Box at{.b = draw_range(random, domain.batch),
                   .h = draw_range(random, domain.heads),
                   .q = draw_range(random, domain.q_len),
                   .kv = draw_range(random, domain.kv_len)};
      const Interval got = intervals.evaluate(at, scratch);
      decided += GetParam() == ProgramKind::kMaskMod && got.is_point() ? 1 : 0;
      for (int point = 0; point < 30; ++point) {
        const Coordinates coordinates{.b = draw(random, at.b),
                                      .h = draw(random, at.h),
                                      .q = draw(random, at.q),
                                      .kv = draw(random, at.kv),
                                      .q_len = static_cast<int32_t>(domain.q_len),
                                      .kv_len = static_cast<int32_t>(domain.kv_len)};
        if (GetParam() == ProgramKind::kMaskMod) {
          const int64_t value = interpreter.mask_mod(coordinates) ? 1 : 0;
          ASSERT_TRUE(got.lo <= value && value <= got.hi)
              << print(program) << "\nbox q " << at.q.lo << " " << at.q.hi << " kv " << at.kv.lo << " " << at.kv.hi;
        } else {
          const double score = std::uniform_real_distribution<double>(-50, 50)(random);
          const double value = interpreter.score_mod(static_cast<float>(score), coordinates);
          ASSERT_TRUE(std::isnan(value) ? got.may_be_nan : got.real_lo <= value && value <= got.real_hi)
              << print(program) << "\nscore " << score << " gives " << value << ", expected [" << got.real_lo << ", "
              << got.real_hi << "]";
        }
      }
    }
  }
  if (GetParam() == ProgramKind::kMaskMod) {
    EXPECT_GT(decided, 2000) << "the test has to meet decided boxes";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RandomPrograms, testing::Values(ProgramKind::kMaskMod, ProgramKind::kScoreMod),
                         [](const auto& kind) { return kind.param == ProgramKind::kMaskMod ? "MaskMod" : "ScoreMod"; });

}  // namespace
}  // namespace flashlift::score
