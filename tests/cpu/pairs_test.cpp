// The bf16 pair kernels: those of this processor, and the same code with emulated instructions.
#include "cpu/tile/pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "compiled_program.h"
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "problem/check.h"
#include "support/gradients.h"
#include "support/half.h"
#include "support/random_problem.h"

namespace flashlift::cpu {
namespace emulated_avx512_bf16 {
const TileKernels& kernels();
}
namespace emulated_amx {
const TileKernels& kernels();
}
namespace {

using testing::Random;

struct Candidate {
  std::string name;
  const TileKernels* kernels;
};

std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  for (const Isa isa : available_isas()) {
    if (tile_kernels(isa).pairs != nullptr) {
      all.push_back({to_string(isa), &tile_kernels(isa)});
    }
  }
  if (detect_capabilities().has_all(needs_of(Isa::kAvx512))) {
    all.push_back({"emulated_avx512_bf16", &emulated_avx512_bf16::kernels()});
    all.push_back({"emulated_amx", &emulated_amx::kernels()});
  }
  return all;
}

class Pairs : public ::testing::TestWithParam<Candidate> {
 protected:
  void SetUp() override { pairs_.begin(); }
  void TearDown() override { pairs_.end(); }

  std::vector<Bf16> random_elements(int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (Bf16& value : values) {
      value = float_to_bf16(uniform(random_));
    }
    return values;
  }
  int64_t padded(int64_t depth) const {
    return (depth + pairs_.depth_multiple - 1) / pairs_.depth_multiple * pairs_.depth_multiple;
  }

  const TileKernels& kernels_ = *GetParam().kernels;
  const PairKernels& pairs_ = *GetParam().kernels->pairs;
  Random random_{11};
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Pairs);
INSTANTIATE_TEST_SUITE_P(Isas, Pairs, ::testing::ValuesIn(candidates()),
                         [](const auto& test) { return test.param.name; });

float at(const std::vector<Bf16>& values, int64_t index) { return bf16_to_float(values[static_cast<size_t>(index)]); }

TEST_P(Pairs, MultipliesPackedColumnsAndRowsOfAnySize) {
  for (const int64_t rows : {1, 5, 16, 23, 32, 33, 50, 96}) {
    for (const int64_t depth : {1, 2, 7, 32, 45, 128}) {
      for (const int64_t columns : {1, 16, 31, 48, 64}) {
        const int64_t stride = padded(depth);
        const int64_t width = (columns + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
        const std::vector<Bf16> a = random_elements(rows * depth);
        const std::vector<Bf16> b = random_elements(depth * columns);
        std::vector<Bf16> rows_of_a(static_cast<size_t>(rows * stride));
        pairs_.convert_rows({a.data(), DType::kBF16, depth, 1}, rows, depth, 0.5f, rows_of_a.data(), stride);
        for (const int layout : {0, 1, 2, 3}) {
          // The four layouts: V, a transposed V, K, a transposed K.
          std::vector<Bf16> panel(static_cast<size_t>(stride * width), 0x7fc0);  // NaN where nothing is written
          if (layout < 2) {
            const MatrixView view = layout == 0 ? MatrixView{b.data(), DType::kBF16, columns, 1}
                                                : MatrixView{b.data(), DType::kBF16, 1, depth};
            EXPECT_TRUE(pairs_.pack(view, depth, columns, panel.data(), width, stride));
          } else {
            const MatrixView view = layout == 2 ? MatrixView{b.data(), DType::kBF16, depth, 1}
                                                : MatrixView{b.data(), DType::kBF16, 1, columns};
            pairs_.pack_transposed(view, columns, depth, panel.data(), width, stride);
          }
          const bool depth_major = layout == 0 || layout == 3;
          std::vector<float> c(static_cast<size_t>(rows * (width + 16)), 3.0f);
          for (const bool accumulate : {true, false}) {
            std::vector<float> got = c;
            PrefetchQueue prefetches;
            pairs_.multiply(rows, static_cast<int>(width / kernels_.lanes), stride, rows_of_a.data(), stride,
                            panel.data(), width, got.data(), width + 16, accumulate, prefetches);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t j = 0; j < width + 16; ++j) {
                double want = accumulate || j >= width ? 3.0 : 0.0;
                for (int64_t k = 0; k < depth && j < columns; ++k) {
                  want += 0.5 * at(a, r * depth + k) * at(b, depth_major ? k * columns + j : j * depth + k);
                }
                ASSERT_NEAR(got[static_cast<size_t>(r * (width + 16) + j)], want, 2e-5)
                    << rows << " x " << depth << " x " << columns << ", layout " << layout << " at " << r << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(Pairs, PackingTellsInfinityAndNan) {
  for (const float special : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<Bf16> b = random_elements(20 * 30);
    b[7 * 30 + 29] = float_to_bf16(special);
    std::vector<Bf16> panel(static_cast<size_t>(32 * 32));
    EXPECT_FALSE(pairs_.pack({b.data(), DType::kBF16, 30, 1}, 20, 30, panel.data(), 32, 32));
  }
}

TEST_P(Pairs, SoftmaxIsTheOneOfF32Rounded) {
  const int64_t stride = 128;
  for (const int64_t columns : {16, 48, 112, 128}) {
    for (const float shift : {0.0f, -3e4f, 1e30f, std::numeric_limits<float>::infinity()}) {
      std::vector<float> s(3 * stride);
      std::uniform_real_distribution<float> uniform(-5, 5);
      for (float& value : s) {
        value = uniform(random_) + (shift == std::numeric_limits<float>::infinity() ? 0 : shift);
      }
      if (shift == std::numeric_limits<float>::infinity()) {
        s[3] = shift;
      }
      float maxima[3];
      kernels_.row_max(s.data(), stride, 3, columns, 1.0f, maxima);
      std::vector<float> reference = s;
      std::vector<float> outputs[2] = {std::vector<float>(3 * 16, 1.0f), std::vector<float>(3 * 16, 1.0f)};
      RowState states[2][3];
      kernels_.softmax(reference.data(), stride, 3, columns, maxima, states[0], outputs[0].data(), 16, 16);
      pairs_.softmax(s.data(), stride, 3, columns, maxima, states[1], outputs[1].data(), 16, 16);
      for (int64_t r = 0; r < 3; ++r) {
        EXPECT_EQ(states[0][r].max, states[1][r].max);
        EXPECT_EQ(states[0][r].sum, states[1][r].sum);
        const Bf16* row = reinterpret_cast<const Bf16*>(s.data() + r * stride);
        double stored = 0;
        for (int64_t c = 0; c < padded(columns); ++c) {
          const float want = c < columns ? reference[static_cast<size_t>(r * stride + c)] : 0.0f;
          EXPECT_EQ(row[c], float_to_bf16(want)) << r << ", " << c;
          stored += bf16_to_float(row[c]);
        }
        EXPECT_NEAR(states[1][r].divisor, stored, stored * 1e-6);
        EXPECT_EQ(states[0][r].divisor, states[0][r].sum);
      }
      EXPECT_EQ(outputs[0], outputs[1]);
    }
  }
}

// The whole forward pass: random problems with bf16 operands.
TEST_P(Pairs, RandomProblemsAgreeWithTheOracle) {
  const Parallel serial{1, [](int64_t count, const std::function<void(int64_t)>& body) {
                          for (int64_t i = 0; i < count; ++i) {
                            body(i);
                          }
                        }};
  for (unsigned long seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    Problem problem = testing::draw_problem(random);
    problem.dtype = DType::kBF16;
    const Result<Forward> forward = Forward::compile(problem, kernels_);
    ASSERT_TRUE(forward.ok()) << forward.error().message;
    ASSERT_EQ(forward->pairs() == nullptr, problem.drops_keys());  // dropout needs probabilities in f32
    testing::OwnedArguments arguments = testing::strided_arguments(problem, random);
    ASSERT_TRUE(forward->run(arguments.views, serial).ok());
    const Result<problem::Judgement> report = problem::check_output(problem, arguments.views);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report->ok) << "seed " << seed << ": " << report->reason << "\n" << print(problem);
  }
}

// The whole backward pass, for the two kinds of d_out of an output in f32: any f32 numbers, and numbers from a
// computation in bf16.
TEST_P(Pairs, GradientsOfRandomProblemsAgreeWithTheOracle) {
  const Parallel serial{1, [](int64_t count, const std::function<void(int64_t)>& body) {
                          for (int64_t i = 0; i < count; ++i) {
                            body(i);
                          }
                        }};
  for (unsigned long seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    Problem problem = testing::draw_problem(random);
    problem.dtype = DType::kBF16;
    problem.dropout = 0;
    problem.keep_mask = false;
    problem.q_len = std::max<int64_t>(problem.q_len, 64);  // with fewer rows, products are in f32
    problem.normalize = true;
    problem.page_size = 0;
    const Result<Forward> forward = Forward::compile(problem, kernels_);
    ASSERT_TRUE(forward.ok()) << forward.error().message;
    ASSERT_NE(forward->pairs(), nullptr);
    testing::OwnedArguments arguments = testing::strided_arguments(problem, random);
    ASSERT_TRUE(forward->run(arguments.views, serial).ok());
    testing::OwnedArguments cotangents;
    const auto shape = arguments.views.out.shape();
    const TensorView d_out = cotangents.dense(problem.d_out_dtype(), {shape.begin(), shape.end()}, random);
    if (d_out.dtype == DType::kF32 && seed % 2 == 0) {
      for (int64_t i = 0; i < d_out.element_count(); ++i) {
        float& element = static_cast<float*>(d_out.data)[i];
        element = bf16_to_float(float_to_bf16(element));
      }
    }
    const testing::OwnedGradients gradients =
        testing::make_gradients(problem, arguments.views, d_out, std::nullopt, random);
    std::vector<bool> wanted;
    for (const std::optional<TensorView>& gradient : gradients.arguments.d_captures) {
      wanted.push_back(gradient.has_value());
    }
    const Result<Backward> backward = Backward::compile(*forward, wanted);
    ASSERT_TRUE(backward.ok()) << backward.error().message;
    ASSERT_TRUE(backward->run(gradients.arguments, serial).ok());
    const Result<problem::Judgement> report = problem::check_gradients(problem, gradients.arguments);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report->ok) << "seed " << seed << ": " << report->reason << "\n" << print(problem);
  }
}

// Gradients whose terms cancel to zero: d_q where all values are alike, and the gradient of a number that is added to
// all scores of a row. <d_out, out> must then equal the sum of the scores' gradients, and not what the forward pass
// rounded.
TEST_P(Pairs, GradientsThatCancelVanish) {
  const Parallel serial{1, [](int64_t count, const std::function<void(int64_t)>& body) {
                          for (int64_t i = 0; i < count; ++i) {
                            body(i);
                          }
                        }};
  for (const bool same_values : {true, false}) {
    for (const int64_t queries : {24, 64}) {  // products in f32 and in bf16
      const Result<Problem> problem = parse_problem(
          "attn b1 h2 sq" + std::to_string(queries) +
          " skv300 d32 bf16 out=f32 lse scale=8 score_mod(c: f32[]) { %0 = load c[]; %1 = add score, %0; return %1 }");
      ASSERT_TRUE(problem.ok()) << problem.error().message;
      const Result<Forward> forward = Forward::compile(*problem, kernels_);
      ASSERT_TRUE(forward.ok());
      ASSERT_NE(forward->pairs(), nullptr);
      Random random(7);
      testing::OwnedArguments arguments = testing::dense_arguments(*problem, random);
      Bf16* v = static_cast<Bf16*>(arguments.views.v.data);
      for (int64_t i = 32; same_values && i < arguments.views.v.element_count(); ++i) {
        v[i] = v[i % 32];
      }
      ASSERT_TRUE(forward->run(arguments.views, serial).ok());
      testing::OwnedArguments cotangents;
      const TensorView d_out = cotangents.dense(DType::kF32, {1, 2, queries, 32}, random);
      const testing::OwnedGradients gradients =
          testing::make_gradients(*problem, arguments.views, d_out, std::nullopt, random);
      const Result<Backward> backward = Backward::compile(*forward, {true});
      ASSERT_TRUE(backward.ok()) << backward.error().message;
      ASSERT_TRUE(backward->run(gradients.arguments, serial).ok());
      const Result<problem::Judgement> report = problem::check_gradients(*problem, gradients.arguments);
      ASSERT_TRUE(report.ok()) << report.error().message;
      EXPECT_TRUE(report->ok) << queries << " queries: " << report->reason;
    }
  }
}

// Rounded probabilities must not change the total weight of a row's values: an output in f32 shows the mean of the
// values to f32's precision, with and without sinks, and whether or not the keys are split.
TEST_P(Pairs, AMeanOfTheValuesIsExact) {
  const Parallel serial{1, [](int64_t count, const std::function<void(int64_t)>& body) {
                          for (int64_t i = 0; i < count; ++i) {
                            body(i);
                          }
                        }};
  for (const char* text :
       {"attn b1 h2 s300 d24 bf16 out=f32 lse causal", "attn b1 h1 sq40 skv1500 d24 bf16 out=f32 lse",
        "attn b1 h2 s300 d24 bf16 out=f32 lse row_max unnormalized"}) {
    const Result<Problem> problem = parse_problem(text);
    ASSERT_TRUE(problem.ok()) << problem.error().message;
    const Result<Forward> forward = Forward::compile(*problem, kernels_);
    ASSERT_TRUE(forward.ok());
    ASSERT_NE(forward->pairs(), nullptr);
    Random random(5);
    testing::OwnedArguments arguments = testing::dense_arguments(*problem, random);
    std::fill_n(static_cast<Bf16*>(arguments.views.v.data), problem->kv_heads * problem->kv_len * 24, float_to_bf16(8));
    ASSERT_TRUE(forward->run(arguments.views, serial).ok());
    const float* out = static_cast<const float*>(arguments.views.out.data);
    for (int64_t row = 0; row < problem->q_heads * problem->q_len; ++row) {
      double want = 8;
      if (!problem->normalize) {
        const auto of_row = [row](const std::optional<TensorView>& view) {
          return static_cast<double>(static_cast<const float*>(view->data)[row]);
        };
        want *= std::exp(of_row(arguments.views.lse) - of_row(arguments.views.row_max));
      }
      for (int64_t d = 0; d < 24; ++d) {
        ASSERT_NEAR(out[row * 24 + d], want, want * 2e-6) << text << ", row " << row;
      }
    }
  }
}

// A masked value may be anything, including infinite.
TEST_P(Pairs, MaskedInfiniteValuesTakeNoPart) {
  const Result<Problem> problem = parse_problem("attn b1 h2 s150 d24 bf16 causal");
  ASSERT_TRUE(problem.ok());
  const Result<Forward> forward = Forward::compile(*problem, kernels_);
  ASSERT_TRUE(forward.ok());
  Random random(3);
  testing::OwnedArguments arguments = testing::dense_arguments(*problem, random);
  Bf16* v = static_cast<Bf16*>(arguments.views.v.data);
  for (int64_t d = 0; d < 24; ++d) {
    v[149 * 24 + d] = float_to_bf16(d % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity());
  }
  const Parallel serial{1, [](int64_t count, const std::function<void(int64_t)>& body) {
                          for (int64_t i = 0; i < count; ++i) {
                            body(i);
                          }
                        }};
  ASSERT_TRUE(forward->run(arguments.views, serial).ok());
  const Result<problem::Judgement> report = problem::check_output(*problem, arguments.views);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok) << report->reason;
}

}  // namespace
}  // namespace flashlift::cpu
