// The micro-kernels of every instruction set of this machine, compared with simple loops.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compiled_program.h"
#include "cpu/dropout.h"
#include "cpu/prefetch_queue.h"
#include "cpu/tile/kernels.h"
#include "problem/dropout.h"
#include "problem/elements.h"
#include "support/half.h"
#include "support/tensors.h"

namespace flashlift::cpu {
namespace {

using testing::Random;

std::vector<float> random_floats(size_t count, Random& random) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) {
    value = uniform(random);
  }
  return values;
}

class Tile : public ::testing::TestWithParam<Isa> {
 protected:
  const TileKernels& kernels_ = tile_kernels(GetParam());
  Random random_{7};
};

INSTANTIATE_TEST_SUITE_P(Isas, Tile, ::testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST_P(Tile, MultipliesAnyNumberOfRowsAndVectors) {
  for (int vectors = 1; vectors <= kernels_.panel_width / kernels_.lanes; ++vectors) {
    const int64_t width = vectors * kernels_.lanes;
    for (int64_t rows = 1; rows <= 27; ++rows) {
      for (const int64_t depth : {0, 1, 5, 64, 130}) {
        const std::vector<float> a = random_floats(static_cast<size_t>(rows * (depth + 3)), random_);
        const int64_t b_stride = width + (rows % 2) * 32;  // a panel, and a part of one
        const std::vector<float> b = random_floats(static_cast<size_t>(depth * b_stride) + 1, random_);
        std::vector<float> c = random_floats(static_cast<size_t>(rows * (width + 5)), random_);
        for (const bool accumulate : {false, true}) {
          std::vector<float> got = c;
          PrefetchQueue prefetches;
          kernels_.multiply(rows, vectors, depth, a.data(), depth + 3, b.data(), b_stride, got.data(), width + 5,
                            accumulate, prefetches);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t j = 0; j < width + 5; ++j) {
              const size_t at = static_cast<size_t>(r * (width + 5) + j);
              if (at >= got.size()) {
                continue;
              }
              double want = accumulate || j >= width ? c[at] : 0.0;
              for (int64_t k = 0; k < depth && j < width; ++k) {
                want += static_cast<double>(a[static_cast<size_t>(r * (depth + 3) + k)]) *
                        b[static_cast<size_t>(k * b_stride + j)];
              }
              ASSERT_NEAR(got[at], want, 1e-5) << rows << " rows, " << vectors << " vectors, depth " << depth;
            }
          }
        }
      }
    }
  }
}

// If the terms were added one by one to a large sum, each would be lost: it is half of the sum's last place.
TEST_P(Tile, ProductsSumApartFromWhatTheyAddTo) {
  constexpr int64_t kDepth = 128;
  constexpr float kTerm = 0x1p-25f;
  const int64_t width = kernels_.lanes;
  const std::vector<float> a(kDepth, kTerm);
  const std::vector<float> b(static_cast<size_t>(kDepth * width), 1.0f);
  std::vector<float> c(static_cast<size_t>(width), 1.0f);
  PrefetchQueue prefetches;
  kernels_.multiply(1, 1, kDepth, a.data(), kDepth, b.data(), width, c.data(), width, true, prefetches);
  EXPECT_EQ(c, std::vector<float>(static_cast<size_t>(width), 1.0f + kDepth * kTerm));
  kernels_.multiply_transposed(1, 1, kDepth, a.data(), 1, b.data(), width, c.data(), width, prefetches);
  EXPECT_EQ(c, std::vector<float>(static_cast<size_t>(width), 1.0f + 2 * kDepth * kTerm));
}

// Elements of every layout: contiguous rows, contiguous columns, neither, reversed, broadcast. The memory is exactly as
// large as the elements, so that AddressSanitizer reports reads past it.
TEST_P(Tile, PacksAnyLayoutWithoutReadingPastIt) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t rows : {1, 7, 16, 37, 64}) {
      for (const int64_t columns : {1, 3, 8, 16, 33}) {
        for (const auto& [row_stride, column_stride] : std::vector<std::pair<int64_t, int64_t>>{
                 {columns, 1}, {columns + 3, 1}, {1, rows}, {2 * columns, 2}, {0, 1}, {-columns, 1}, {1, -rows}}) {
          const int64_t lowest =
              std::min<int64_t>(0, (rows - 1) * row_stride) + std::min<int64_t>(0, (columns - 1) * column_stride);
          const int64_t highest =
              std::max<int64_t>(0, (rows - 1) * row_stride) + std::max<int64_t>(0, (columns - 1) * column_stride);
          const int64_t size = static_cast<int64_t>(size_in_bytes(dtype));
          std::vector<std::byte> memory(static_cast<size_t>((highest - lowest + 1) * size));
          TensorView all{memory.data(), dtype, 1, {highest - lowest + 1}, {1}};
          testing::fill(all, random_);
          const std::byte* data = memory.data() - lowest * size;
          const auto value = [&](int64_t r, int64_t c) {
            const int64_t at = r * row_stride + c * column_stride;
            return dtype == DType::kF32   ? reinterpret_cast<const float*>(data)[at]
                   : dtype == DType::kF16 ? f16_to_float(reinterpret_cast<const uint16_t*>(data)[at])
                                          : bf16_to_float(reinterpret_cast<const uint16_t*>(data)[at]);
          };
          const MatrixView view{data, dtype, row_stride, column_stride};
          const int64_t padded_rows = (rows + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
          std::vector<float> transposed(static_cast<size_t>(columns * padded_rows), -1.0f);
          kernels_.pack_transposed(view, rows, columns, 4.0f, transposed.data(), padded_rows);
          const int64_t padded_columns = columns + 2;
          std::vector<float> converted(static_cast<size_t>(rows * padded_columns), -1.0f);
          kernels_.convert_rows(view, rows, columns, 2.0f, converted.data(), padded_columns);
          for (int64_t r = 0; r < padded_rows; ++r) {
            for (int64_t c = 0; c < padded_columns; ++c) {
              const float want = r < rows && c < columns ? value(r, c) : 0.0f;
              if (c < columns) {
                ASSERT_EQ(transposed[static_cast<size_t>(c * padded_rows + r)], 4 * want);
              }
              if (r < rows) {
                ASSERT_EQ(converted[static_cast<size_t>(r * padded_columns + c)], 2 * want);
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(Tile, LogarithmsOfSumsAreThoseOfDoubles) {
  std::vector<RowState> states;
  float power = 1.2e-38f;
  while (power < 3e38f) {
    states.push_back({0, power});
    power *= 1.37f;
  }
  for (const float sum : {1.0f, std::nextafter(1.0f, 0.0f), std::nextafter(1.0f, 2.0f), 0.70710678f, 1.41421356f}) {
    states.push_back({0, sum});
  }
  std::vector<double> logs(states.size());
  kernels_.log_sums(states.data(), static_cast<int64_t>(states.size()), logs.data());
  for (size_t i = 0; i < states.size(); ++i) {
    const double want = std::log(static_cast<double>(states[i].sum));
    EXPECT_NEAR(logs[i], want, 4e-14 + 4e-16 * std::abs(want)) << states[i].sum;
  }
  const RowState one{0, 1};
  kernels_.log_sums(&one, 1, logs.data());
  EXPECT_EQ(logs[0], 0);  // a row with one key
}

TEST_P(Tile, ProductsBringLinesNearAtTheirPace) {
  const std::vector<float> memory(4096);
  PrefetchQueue prefetches;
  push(prefetches, {memory.data(), DType::kF32, 40, 1}, 6, 33);     // six rows of 132 bytes: three lines each
  push(prefetches, {&memory[240], DType::kF32, 40, 1}, 4, 33);      // follows it
  push(prefetches, {&memory[1024], DType::kBF16, 1, 256}, 32, 10);  // columns of 64 bytes
  push(prefetches, {&memory[1024], DType::kF32, 16, 2}, 4, 4);      // scattered
  push(prefetches, {memory.data(), DType::kF32, 40, 1}, 0, 33);     // nothing
  ASSERT_EQ(prefetches.count, 2);
  EXPECT_EQ(prefetches.pieces[0].count, 10);
  const int64_t rows = 48;
  const int64_t depth = 40;
  set_rate(prefetches, 2 * prefetch_steps(rows, depth));
  EXPECT_EQ(prefetches.rate, 1);  // 40 lines in 48 steps
  const int vectors = kernels_.panel_width / kernels_.lanes;
  const std::vector<float> a(static_cast<size_t>(rows * depth));
  const std::vector<float> b(static_cast<size_t>(depth * kernels_.panel_width));
  std::vector<float> c(static_cast<size_t>(rows * kernels_.panel_width));
  for (int i = 0; i < 2; ++i) {
    EXPECT_LT(prefetches.next, prefetches.count);
    kernels_.multiply(rows, vectors, depth, a.data(), depth, b.data(), kernels_.panel_width, c.data(),
                      kernels_.panel_width, false, prefetches);
  }
  EXPECT_EQ(prefetches.next, prefetches.count);
  push(prefetches, {memory.data(), DType::kF32, 40, 1}, 4, 33);
  drain(kernels_, prefetches);
  EXPECT_EQ(prefetches.count, 0);
}

TEST_P(Tile, ExponentialsOfTheSoftmaxAreAccurate) {
  // Column 0 holds the maximum, so that the other columns give their exponentials directly.
  const int64_t columns = 4096;
  for (const float top : {0.0f, 3.7f, -20.0f, 500.0f}) {
    std::vector<float> s(static_cast<size_t>(columns));
    for (int64_t c = 0; c < columns; ++c) {
      s[static_cast<size_t>(c)] = top - static_cast<float>(c) * 0.0205f;
    }
    const std::vector<float> scores = s;
    RowState state;
    float o[16] = {};
    kernels_.softmax(s.data(), columns, 1, columns, &top, &state, o, 16, 16);
    const double base = exponent_base(top);
    double sum = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double want = std::exp(scores[static_cast<size_t>(c)] - base);
      // The exponent itself is rounded, relative to its size; a difference of two floats is rounded likewise.
      const double distance = std::abs(scores[static_cast<size_t>(c)] - top);
      const double bound = want * (2.5e-7 + 8e-8 * distance) + 1.2e-38;
      ASSERT_NEAR(s[static_cast<size_t>(c)], want, bound) << "e^" << scores[static_cast<size_t>(c)] << " below " << top;
      sum += want;
    }
    EXPECT_NEAR(state.sum, sum, sum * 1e-6);
  }
}

TEST_P(Tile, SoftmaxKeepsItsStateOverGrowingMaxima) {
  // Rows whose maximum changes from masked through large negative constants to ordinary scores and back.
  const float levels[] = {-INFINITY, -3.4028235e38f, -1e30f, -10001.0f, -9999.0f, -5.0f, 0.0f, 7.0f, 9999.5f, 10002.0f};
  RowState state;
  std::vector<float> o(16, 0.0f);
  double sum = 0;
  double reference = -INFINITY;
  for (const float level : levels) {
    std::vector<float> s(16, level);
    for (int i = 1; i < 16; ++i) {
      s[static_cast<size_t>(i)] = level - static_cast<float>(i);
    }
    float maximum = level;
    const std::vector<float> scores = s;
    kernels_.softmax(s.data(), 16, 1, 16, &maximum, &state, o.data(), 16, 16);
    if (level == -INFINITY) {
      EXPECT_EQ(state.sum, 0);
      continue;
    }
    sum = std::isinf(reference) ? 0 : sum * std::exp(reference - level);
    reference = level;
    for (const float score : scores) {
      sum += std::exp(static_cast<double>(score) - level);
    }
    EXPECT_EQ(state.max, level);
    EXPECT_NEAR(std::log(state.sum) + exponent_base(state.max), std::log(sum) + level, std::abs(level) * 1e-7 + 2e-6)
        << "at " << level;
  }
}

TEST_P(Tile, RowMaximumMasksThePaddingAndIgnoresNan) {
  std::vector<float> s(32, 100.0f);
  s[0] = NAN;
  s[1] = -3;
  s[2] = 5;
  float maximum = 0;
  kernels_.row_max(s.data(), 32, 1, 3, 2.0f, &maximum);
  EXPECT_EQ(maximum, 10);
  EXPECT_EQ(s[1], -6);
  EXPECT_EQ(s[3], -INFINITY);
}

TEST_P(Tile, MultipliesFewRowsWithKeysAsTheyLie) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t depth : {1, 8, 16, 50, 64, 128}) {
      constexpr int64_t kKeys = 7;
      testing::OwnedArguments memory;
      const TensorView keys = memory.dense(dtype, {kKeys, depth}, random_);
      const auto at = [&](int64_t key, int64_t d) {
        return static_cast<float>(problem::read_float(keys, key * depth + d));
      };
      for (int64_t rows = 1; rows <= 8; ++rows) {
        const std::vector<float> q = random_floats(static_cast<size_t>(rows * depth), random_);
        std::vector<float> s(static_cast<size_t>(rows * kKeys));
        const MatrixView view{keys.data, dtype, depth, 1};
        kernels_.dot_rows(view, kKeys, depth, q.data(), depth, rows, s.data(), kKeys, view);
        const int64_t stride = (depth + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
        std::vector<float> o(static_cast<size_t>(rows * stride), 1.0f);
        kernels_.add_rows(view, kKeys, depth, s.data(), kKeys, rows, o.data(), stride, view);
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<double> sum(static_cast<size_t>(depth), 1.0);
          for (int64_t key = 0; key < kKeys; ++key) {
            double dot = 0;
            for (int64_t d = 0; d < depth; ++d) {
              dot += q[static_cast<size_t>(r * depth + d)] * at(key, d);
            }
            EXPECT_NEAR(s[static_cast<size_t>(r * kKeys + key)], dot, 1e-4);
            for (int64_t d = 0; d < depth; ++d) {
              sum[static_cast<size_t>(d)] += dot * at(key, d);
            }
          }
          for (int64_t d = 0; d < depth; ++d) {
            EXPECT_NEAR(o[static_cast<size_t>(r * stride + d)], sum[static_cast<size_t>(d)], 1e-3);
          }
        }
      }
    }
  }
}

TEST_P(Tile, DropsOutWhatTheDefinitionDropsOut) {
  // The oracle's generator is checked against published numbers, and shares no code with this one.
  const Problem problem = *parse_problem("attn h1 s1 d1 dropout=0.3");
  constexpr uint64_t kSeed = 0xfedcba9876543210;
  const AttentionArguments arguments{.dropout_seed = kSeed, .dropout_origin = {3, 40}};
  const Dropout dropout = dropout_of(problem, arguments);
  for (const int64_t columns : {1, 8, 17, 64, 100, 128, 200}) {
    const DropoutRow row{columns, 1, 70000 + columns};
    std::vector<float> s(256, 2.0f);
    kernels_.drop_out(s.data(), columns, dropout, row, 1 << 20);
    for (int64_t c = 0; c < columns; ++c) {
      const bool kept = problem::dropout_factor(problem, arguments, row.b, row.h, row.q, (1 << 20) + c) != 0;
      EXPECT_EQ(s[static_cast<size_t>(c)], kept ? 2.0f : 0.0f) << c << " of " << columns;
      EXPECT_EQ(keeps(dropout, row, (1 << 20) + c), kept);
    }
  }
}

TEST_P(Tile, StoresEveryDtypeAndStride) {
  const std::vector<float> values = {1.00390625f, -0.0f, INFINITY, NAN, 65519.0f, 1e-8f, 3.14159274f, -2.5f, 1e20f};
  for (const int64_t stride : {1, 3}) {
    std::vector<float> source(32, 0.0f);
    std::copy(values.begin(), values.end(), source.begin());
    std::vector<uint16_t> half(values.size() * static_cast<size_t>(stride));
    const auto columns = static_cast<int64_t>(values.size());
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      kernels_.store_row(source.data(), columns, 1.0f, half.data(), dtype, stride);
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t want = dtype == DType::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
        EXPECT_EQ(half[i * static_cast<size_t>(stride)], want) << to_string(dtype) << " of " << values[i];
      }
    }
  }
}

TEST_P(Tile, FindsInfinitiesAndNan) {
  std::vector<float> values(64, 1e38f);
  EXPECT_TRUE(kernels_.all_finite(values.data(), 64));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (size_t i = 0; i < values.size(); i += 7) {
      std::vector<float> with = values;
      with[i] = bad;
      EXPECT_FALSE(kernels_.all_finite(with.data(), 64));
    }
  }
}

}  // namespace
}  // namespace flashlift::cpu
