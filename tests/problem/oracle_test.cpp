#include "problem/oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "problem/check.h"
#include "problem/eager.h"

namespace flashlift::problem {
namespace {

// One head, head dimension 1, q = 1 and scale = 1: the scores are k, which makes rows easy to compute by hand.
struct Row {
  std::vector<float> q = {1};
  std::vector<float> k = {0, std::log(2.0f), std::log(5.0f)};
  std::vector<float> v = {10, 20, 40};
  std::vector<float> out = {0};
  std::vector<float> lse = {0};
  std::vector<float> sinks = {std::log(2.0f)};
  Problem problem;
  AttentionArguments arguments;

  explicit Row(const std::string& words = "") {
    problem = *parse_problem("attn h1 sq1 skv3 d1 scale=1 " + words);
    const auto view = [](std::vector<float>& data, std::vector<int64_t> shape) {
      return dense_view(data.data(), DType::kF32, shape);
    };
    arguments = {.q = view(q, {1, 1, 1, 1}),
                 .k = view(k, {1, 1, 3, 1}),
                 .v = view(v, {1, 1, 3, 1}),
                 .out = view(out, {1, 1, 1, 1}),
                 .captures = {},
                 .sinks = {},
                 .lse = {}};
    if (problem.sinks > 0) {
      arguments.sinks = view(sinks, {1, 1});
    }
    if (problem.want_lse) {
      arguments.lse = view(lse, {1, 1, 1});
    }
  }
  OracleResult run() const { return *run_oracle(problem, arguments); }
};

TEST(Oracle, WeightsValuesBySoftmax) {
  const auto result = Row("lse").run();
  EXPECT_NEAR(result.out[0], (1 * 10 + 2 * 20 + 5 * 40) / 8.0, 1e-5);
  EXPECT_NEAR(result.lse[0], std::log(8.0), 1e-6);
}

TEST(Oracle, SinksTakeWeightButNoValue) { EXPECT_NEAR(Row("sinks=1").run().out[0], 250 / 10.0, 1e-5); }

TEST(Oracle, CanLeaveOutTheNormalisation) {
  EXPECT_NEAR(Row("unnormalized").run().out[0], 250 / 5.0, 1e-5);  // weights relative to the largest
}

TEST(Oracle, MaskedKeysTakeNoPart) {
  Row row("mask_mod() { %0 = lt kv, 2; return %0 }");
  row.v[2] = NAN;
  EXPECT_NEAR(row.run().out[0], (10 + 2 * 20) / 3.0, 1e-5);
}

TEST(Oracle, EmptyRowsAreAPropertyOfTheProblem) {
  const std::string none = " mask_mod() { return false }";
  EXPECT_EQ(Row("empty_rows=zero" + none).run().out[0], 0);
  EXPECT_EQ(Row("empty_rows=zero" + none).run().lse[0], -INFINITY);
  EXPECT_NEAR(Row("empty_rows=uniform" + none).run().out[0], 70 / 3.0, 1e-5);
  EXPECT_TRUE(std::isnan(Row("empty_rows=nan" + none).run().out[0]));
  EXPECT_EQ(Row("sinks=1 empty_rows=nan" + none).run().out[0], 0);  // a sink keeps the row from being empty
}

TEST(Check, AcceptsEagerMathsAndRejectsAWrongValue) {
  Row row("lse");
  row.out[0] = run_eager(row.problem, row.arguments)->out[0];
  row.lse[0] = static_cast<float>(std::log(8.0));
  EXPECT_TRUE(check_output(row.problem, row.arguments)->ok);
  row.out[0] *= 1.00001f;
  const auto wrong = check_output(row.problem, row.arguments);
  EXPECT_FALSE(wrong->ok);
  EXPECT_NE(wrong->reason.find("above the limit"), std::string::npos);
  row.out[0] = NAN;
  EXPECT_NE(check_output(row.problem, row.arguments)->reason.find("at out[0,0,0,0], got nan"), std::string::npos);
}

}  // namespace
}  // namespace flashlift::problem
