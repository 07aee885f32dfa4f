// Every operation with every operand type and all combinations of edge values, as vectors and as scalars, compared with
// score/scalar.h.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compiled_program.h"
#include "score/operation.h"
#include "score/scalar.h"
#include "score/verify.h"

namespace flashlift::cpu {
namespace {

using score::Scalar;

const std::vector<float>& edge_floats() {
  static const std::vector<float> values = [] {
    using Limits = std::numeric_limits<float>;
    std::vector<float> v = {0.0f,          1e-45f,
                            1e-40f,        Limits::min(),
                            1e-20f,        1e-4f,
                            0.1f,          0.5f,
                            0.6931472f,    1.0f,
                            1.5f,          2.0f,
                            2.5f,          3.0f,
                            3.14159274f,   7.99f,
                            9.0f,          10.0f,
                            31.5f,         88.5f,
                            89.0f,         103.0f,
                            104.5f,        127.0f,
                            128.5f,        150.0f,
                            1e4f,          65504.0f,
                            65520.0f,      1e9f,
                            2147483520.0f, 2147483648.0f,
                            4e9f,          9.2e18f,
                            9.223372e18f,  1e30f,
                            Limits::max(), Limits::infinity()};
    for (size_t i = 0, n = v.size(); i < n; ++i) {
      v.push_back(-v[i]);
    }
    v.push_back(Limits::quiet_NaN());
    return v;
  }();
  return values;
}

std::vector<int64_t> edge_integers(Type type) {
  std::vector<int64_t> v = {0, 1, -1, 2, -2, 3, -3, 7, -7, 10, 31, 32, 33, 63, 64, 100, -100, 65535, 1 << 30};
  const int64_t lowest = type == Type::kI64 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
  for (const int64_t extra : {lowest, lowest + 1, -(lowest + 1), -(lowest + 1) - 1, lowest / 2, lowest / 3}) {
    v.push_back(extra);
  }
  if (type == Type::kI64) {
    v.insert(v.end(), {int64_t{1} << 31, int64_t{1} << 40, -(int64_t{1} << 33), (int64_t{1} << 53) + 1});
  }
  return v;
}

std::vector<Scalar<float>> edge_values(Type type) {
  std::vector<Scalar<float>> values;
  if (type == Type::kF32) {
    for (const float x : edge_floats()) {
      values.push_back({.i = 0, .f = x});
    }
  } else if (type == Type::kI1) {
    values = {{.i = 0, .f = 0}, {.i = 1, .f = 0}};
  } else {
    for (const int64_t x : edge_integers(type)) {
      values.push_back({.i = x, .f = 0});
    }
  }
  return values;
}

// A column of operands as a captured tensor.
struct Column {
  std::vector<std::byte> bytes;
  TensorView view;

  Column(Type type, const std::vector<Scalar<float>>& values) {
    const DType dtype = dtype_of(type);
    bytes.resize(values.size() * size_in_bytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      std::byte* at = bytes.data() + i * size_in_bytes(dtype);
      const auto put = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
      switch (type) {
        case Type::kI1:
          put(static_cast<uint8_t>(values[i].i));
          break;
        case Type::kI32:
          put(static_cast<int32_t>(values[i].i));
          break;
        case Type::kI64:
          put(values[i].i);
          break;
        case Type::kF32:
          put(values[i].f);
          break;
      }
    }
    const std::vector<int64_t> shape = {static_cast<int64_t>(values.size())};
    view = dense_view(bytes.data(), dtype, shape);
  }

  static DType dtype_of(Type type) {
    switch (type) {
      case Type::kI1:
        return DType::kBool;
      case Type::kI32:
        return DType::kI32;
      case Type::kI64:
        return DType::kI64;
      case Type::kF32:
        return DType::kF32;
    }
    return DType::kF32;
  }
};

struct OpCase {
  Op op;
  std::vector<Type> operands;
  Type result;
};

// All cases that the type rules allow.
std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  const std::vector<Type> types = {Type::kI1, Type::kI32, Type::kI64, Type::kF32};
  for (int i = 0; i < kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    const int arity = info(op).arity;
    if (arity <= 0 || reads_capture(op)) {
      continue;
    }
    for (const Type type : types) {
      std::vector<Type> operands(static_cast<size_t>(arity), type);
      if (op == Op::k_select) {
        operands[0] = Type::kI1;
      }
      const Result<Type> result = score::result_type(op, operands, type);
      if (result.ok()) {
        cases.push_back({op, operands, *result});
      }
    }
  }
  return cases;
}

// All combinations of the operands' values, one column per operand.
std::vector<std::vector<Scalar<float>>> combinations(const std::vector<Type>& types) {
  std::vector<std::vector<Scalar<float>>> columns(types.size());
  std::vector<std::vector<Scalar<float>>> edges;
  size_t count = 1;
  for (const Type type : types) {
    edges.push_back(edge_values(type));
    count *= edges.back().size();
  }
  // All values of a third operand would square the number of pairs: its values change together with the second's.
  for (size_t i = 0; i < count; ++i) {
    size_t rest = i;
    for (size_t o = 0; o < types.size(); ++o) {
      columns[o].push_back(edges[o][rest % edges[o].size()]);
      rest /= edges[o].size();
    }
  }
  return columns;
}

std::string program_text(const OpCase& c, const char* index, size_t count) {
  std::string parameters;
  std::string body;
  std::string arguments;
  for (size_t o = 0; o < c.operands.size(); ++o) {
    const std::string name(1, static_cast<char>('x' + o));
    parameters += (o > 0 ? ", " : "") + name + ": " + to_string(Column::dtype_of(c.operands[o])) + "[" +
                  std::to_string(count) + "]";
    body += "%" + std::to_string(o) + " = load " + name + "[" + index + "]; ";
    arguments += (o > 0 ? ", %" : " %") + std::to_string(o);
  }
  body += "%10 = " + std::string(info(c.op).name) + arguments + "; ";
  // Returns 16 bits of the result at a time, which an f32 holds exactly; b selects which.
  switch (c.result) {
    case Type::kF32:
      body += "%11 = bitcast_i32 %10; ";
      break;
    case Type::kI1:
      body += "%11 = to_i32 %10; ";
      break;
    case Type::kI32:
      body += "%11 = or %10, 0; ";
      break;
    case Type::kI64:
      body += "%11 = or %10, 0:i64; ";
      break;
  }
  const bool wide = c.result == Type::kI64;
  body += "%12 = mul b, 16; ";
  body += wide ? "%13 = to_i64 %12; %14 = ushr %11, %13; %15 = and %14, 65535:i64; "
               : "%14 = ushr %11, %12; %15 = and %14, 65535; ";
  return "score_mod(" + parameters + ") { " + body + "%16 = to_f32 %15; return %16 }";
}

// The distance in units of the last place; 0 for equal values and for two NaNs.
double ulps(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) {
    return std::isnan(want) && std::isnan(got) ? 0 : INFINITY;
  }
  const float nearest = static_cast<float>(want);
  if (got == nearest) {
    return 0;
  }
  if (std::isinf(got) || std::isinf(nearest)) {
    return INFINITY;
  }
  const double ulp = std::max(std::ldexp(1.0, std::ilogb(nearest) - 23), std::ldexp(1.0, -149));
  return std::abs(static_cast<double>(got) - want) / ulp;
}

void expect_same(const OpCase& c, const std::vector<Scalar<float>>& x, int64_t got) {
  std::string shown;
  for (size_t o = 0; o < x.size(); ++o) {
    shown += c.operands[o] == Type::kF32 ? " " + std::to_string(x[o].f) : " " + std::to_string(x[o].i);
  }
  const Type operand_type = c.operands.back();
  if (c.result != Type::kF32) {
    EXPECT_EQ(got, score::apply<float>(c.op, c.result, operand_type, x).i) << info(c.op).name << shown;
    return;
  }
  const float value = std::bit_cast<float>(static_cast<int32_t>(got));
  const int allowed = score::operation(c.op).ulps;
  if (allowed == 0) {
    const float want = score::apply<float>(c.op, c.result, operand_type, x).f;
    EXPECT_EQ(ulps(value, want), 0) << info(c.op).name << shown << ": " << value << " instead of " << want;
    return;
  }
  std::vector<Scalar<double>> wide;
  for (const Scalar<float>& operand : x) {
    wide.push_back({.i = operand.i, .f = operand.f});
  }
  const double want = score::apply<double>(c.op, c.result, operand_type, wide).f;
  EXPECT_LE(ulps(value, want), allowed) << info(c.op).name << shown << ": " << value << " instead of " << want;
}

int64_t assemble(Type type, const std::vector<int64_t>& pieces) {
  uint64_t bits = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    bits |= static_cast<uint64_t>(pieces[i]) << (16 * i);
  }
  return type == Type::kI64 ? static_cast<int64_t>(bits) : static_cast<int32_t>(static_cast<uint32_t>(bits));
}

class JitOps : public ::testing::TestWithParam<OpCase> {};

TEST_P(JitOps, AgreeWithTheInterpreterOnEdgeValues) {
  const OpCase& c = GetParam();
  const auto operands = combinations(c.operands);
  const size_t count = operands[0].size();
  std::vector<Column> columns;
  std::vector<TensorView> views;
  for (size_t o = 0; o < operands.size(); ++o) {
    columns.emplace_back(c.operands[o], operands[o]);
    views.push_back(columns.back().view);
  }
  const int pieces = c.result == Type::kI64 ? 4 : 2;
  for (const Isa isa : available_isas()) {
    for (const bool uniform : {false, true}) {
      CompiledProgram program(problem_of_programs(program_text(c, uniform ? "h" : "kv", count)), isa, views);
      std::vector<RowCoordinates> rows;
      for (int piece = 0; piece < pieces; ++piece) {
        for (size_t i = 0; i < (uniform ? count : 1); ++i) {
          rows.push_back({piece, static_cast<int32_t>(i), 0});
        }
      }
      const std::vector<float> zeros(static_cast<size_t>(pieces) * count);
      const std::vector<float> parts = program.run(zeros, rows, uniform ? 1 : static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) {
        std::vector<int64_t> bits;
        for (int piece = 0; piece < pieces; ++piece) {
          bits.push_back(static_cast<int64_t>(parts[static_cast<size_t>(piece) * count + i]));
        }
        std::vector<Scalar<float>> x;
        for (const auto& column : operands) {
          x.push_back(column[i]);
        }
        expect_same(c, x, assemble(c.result, bits));
        if (HasFailure()) {
          GTEST_FAIL() << to_string(isa) << (uniform ? " scalar" : " vector");
        }
      }
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<OpCase>& test) {
  return std::string(info(test.param.op).name) + "_" + to_string(test.param.operands.back());
}

INSTANTIATE_TEST_SUITE_P(AllOps, JitOps, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace flashlift::cpu
