// Loads of every dtype, with any strides, and with indices that increase, decrease, vary at random and are out of
// range.
#include <gtest/gtest.h>

#include <cstring>

#include "compiled_program.h"
#include "score/interpret.h"
#include "support/tensors.h"

namespace flashlift::cpu {
namespace {

using testing::Random;

struct LoadCase {
  const char* index;
  const char* setup;
};

const LoadCase kIndices[] = {
    {"kv", ""},
    {"%0", "%0 = sub kv, q; "},
    {"%0", "%0 = sub q, kv; "},
    {"%1", "%0 = sub kv, q; %1 = neg %0; "},
    {"%1", "%0 = to_i64 kv; %1 = sub %0, 5:i64; "},
    {"%0", "%0 = mul kv, 7; "},
    {"%0", "%0 = mod kv, 5; "},
    {"%1", "%0 = add kv, 2147483647; %1 = add %0, kv; "},
    {"q", ""},
};

class JitLoads : public ::testing::TestWithParam<DType> {};

TEST_P(JitLoads, AgreeWithTheInterpreter) {
  const DType dtype = GetParam();
  const std::string to_result = scalar_type(dtype) == Type::kF32 ? "" : "%9 = to_f32 %8; ";
  const std::string result = scalar_type(dtype) == Type::kF32 ? "%8" : "%9";
  const int64_t columns = 75;
  const std::vector<RowCoordinates> rows = {{0, 0, 0}, {0, 1, 3}, {0, 0, 40}, {1, 1, 90}};
  Random random(3);
  for (const LoadCase& c : kIndices) {
    const std::string text = "score_mod(t: " + std::string(to_string(dtype)) + "[2,?]) { " + c.setup +
                             "%8 = load t[h, " + c.index + "]; " + to_result + "return " + result + " }";
    const Problem problem = problem_of_programs(text);
    std::vector<CompiledProgram> programs;
    for (const Isa isa : available_isas()) {
      programs.emplace_back(problem, isa, std::vector<TensorView>());
    }
    for (const int64_t size : {1, 7, 16, 33, 80}) {
      for (const int64_t stride : {1, 2, -1, 0}) {
        // The memory holds exactly the elements, so that AddressSanitizer reports a read past them.
        const int64_t extent = std::abs(stride) * (size - 1) + 1;
        std::vector<std::byte> memory(static_cast<size_t>(2 * extent) * size_in_bytes(dtype));
        TensorView all{memory.data(), dtype, 1, {2 * extent}, {1}};
        testing::fill(all, random);
        std::byte* data = memory.data() + (stride < 0 ? (extent - 1) * static_cast<int64_t>(size_in_bytes(dtype)) : 0);
        const std::vector<TensorView> captures = {TensorView{data, dtype, 2, {2, size}, {extent, stride}}};
        score::Interpreter interpreter(*problem.score_mod, captures);
        for (CompiledProgram& program : programs) {
          program.bind(captures);
          const std::vector<float> zeros(rows.size() * static_cast<size_t>(columns));
          const std::vector<float> got = program.run(zeros, rows, columns, 11);
          for (size_t r = 0; r < rows.size(); ++r) {
            for (int64_t j = 0; j < columns; ++j) {
              const score::Coordinates at{.b = rows[r].b,
                                          .h = rows[r].h,
                                          .q = rows[r].q,
                                          .kv = static_cast<int32_t>(11 + j),
                                          .q_len = 1000,
                                          .kv_len = 2000};
              ASSERT_EQ(got[r * static_cast<size_t>(columns) + static_cast<size_t>(j)],
                        static_cast<float>(interpreter.score_mod(0, at)))
                  << c.setup << c.index << " size " << size << " stride " << stride;
            }
          }
        }
      }
    }
  }
}

// A search for one value per row, and for one value per key; in sorted tensors, and in unsorted ones.
TEST(JitSearch, AgreesWithTheInterpreter) {
  testing::Random random(5);
  const std::vector<RowCoordinates> rows = {{0, 0, -3}, {0, 0, 0}, {0, 1, 4}, {0, 0, 500}};
  constexpr int64_t kColumns = 40;
  for (const char* dtype : {"i8", "u8", "i16", "i32", "u32", "i64"}) {
    const Problem problem = problem_of_programs(std::string("score_mod(t: ") + dtype +
                                                "[?]) { %0 = search t[q]; %1 = to_i64 kv; %2 = search t[%1]; " +
                                                "%3 = mul %0, 1000; %4 = add %3, %2; %5 = to_f32 %4; return %5 }");
    for (const Isa isa : available_isas()) {
      CompiledProgram program(problem, isa, {});
      for (const int64_t size : {1, 2, 7, 16, 33, 100}) {
        for (const bool rises : {true, false}) {
          const DType type = *parse_dtype(dtype);
          std::vector<std::byte> memory(static_cast<size_t>(size) * size_in_bytes(type));
          const TensorView tensor{memory.data(), type, 1, {size}, {1}};
          testing::fill(tensor, random);
          for (int64_t i = 0; rises && i < size; ++i) {
            const int64_t value = i - i % 3 - 5;
            const int64_t stored = type == DType::kU8 || type == DType::kU32 ? std::max<int64_t>(value, 0) : value;
            std::memcpy(memory.data() + static_cast<size_t>(i) * size_in_bytes(type), &stored, size_in_bytes(type));
          }
          const std::vector<TensorView> captures = {tensor};
          score::Interpreter interpreter(*problem.score_mod, captures);
          program.bind(captures);
          const std::vector<float> zeros(rows.size() * static_cast<size_t>(kColumns));
          const std::vector<float> got = program.run(zeros, rows, kColumns, 11);
          for (size_t r = 0; r < rows.size(); ++r) {
            for (int64_t j = 0; j < kColumns; ++j) {
              ASSERT_EQ(got[r * static_cast<size_t>(kColumns) + static_cast<size_t>(j)],
                        static_cast<float>(interpreter.score_mod(
                            0, {.b = 0, .h = 0, .q = rows[r].q, .kv = static_cast<int32_t>(11 + j)})))
                  << dtype << " size " << size << " row " << r << " key " << 11 + j;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, JitLoads,
                         ::testing::Values(DType::kBool, DType::kI8, DType::kU8, DType::kI16, DType::kI32, DType::kU32,
                                           DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(JitScores, MaskAndPaddingGiveMinusInfinityAndTheRowMaximum) {
  const Problem problem =
      problem_of_programs("score_mod() { %0 = add score, 1.0; return %0 } mask_mod() { %0 = le kv, q; return %0 }");
  for (const Isa isa : available_isas()) {
    CompiledProgram program(problem, isa, {});
    std::vector<float> maxima;
    const std::vector<float> got = program.run({0, 1, 2, 3, 4, 5}, {{0, 0, 1}, {0, 0, -1}}, 3, 0, true, &maxima);
    EXPECT_EQ(got, (std::vector<float>{1, 2, -INFINITY, -INFINITY, -INFINITY, -INFINITY}));
    EXPECT_EQ(maxima, (std::vector<float>{2, -INFINITY}));
  }
}

}  // namespace
}  // namespace flashlift::cpu
