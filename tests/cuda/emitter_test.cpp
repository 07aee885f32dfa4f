#include "cuda/emit/program_emitter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/compile/nvrtc.h"
#include "cuda/emit/conditions.h"
#include "cuda/emit/kernel_source.h"
#include "flashlift/problem.h"
#include "score/interpret.h"
#include "score/verify.h"

namespace flashlift::cuda {
namespace {

Problem problem_of(const std::string& text) {
  Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << text << ": " << problem.error().message;
  return *problem;
}

// A program that applies every operation on values of the type, and whose result depends on all of their results.
class EveryOperation {
 public:
  explicit EveryOperation(Type type) : type_(type) {
    program_.kind = ProgramKind::kMaskMod;
    const ValueId q = add(Op::k_q, Type::kI32, {});
    const ValueId kv = add(Op::k_kv, Type::kI32, {});
    condition_ = converted(kv, Type::kI1);
    x_ = converted(q, type);
    y_ = converted(kv, type);
    program_.result = condition_;
    for (int op = 0; op < kOpCount; ++op) {
      apply(static_cast<Op>(op));
    }
  }

  int operations() const { return operations_; }
  Problem problem() const {
    Problem problem = problem_of("attn h1 s64 d64 bf16");
    problem.mask_mod = program_;
    EXPECT_TRUE(verify(problem).ok()) << verify(problem).error().message;
    return problem;
  }

 private:
  ValueId add(Op op, Type type, std::vector<ValueId> operands) {
    program_.nodes.push_back({op, type, std::move(operands), 0});
    return static_cast<ValueId>(program_.nodes.size() - 1);
  }

  ValueId converted(ValueId value, Type to) {
    switch (to) {
      case Type::kI1:
        return add(Op::k_to_i1, to, {value});
      case Type::kI32:
        return value;
      case Type::kI64:
        return add(Op::k_to_i64, to, {value});
      case Type::kF32:
        return add(Op::k_to_f32, to, {value});
    }
    return value;
  }

  void apply(Op op) {
    std::vector<ValueId> operands;
    if (op == Op::k_select) {
      operands = {condition_, x_, y_};
    } else if (info(op).arity == 1 && !reads_capture(op)) {
      operands = {x_};
    } else if (info(op).arity == 2) {
      operands = {x_, y_};
    } else {
      return;  // inputs, constants, loads and searches have separate tests
    }
    std::vector<Type> types;
    for (const ValueId operand : operands) {
      types.push_back(program_.nodes[operand].type);
    }
    const Result<Type> result = score::result_type(op, types, type_);
    if (!result.ok()) {
      return;
    }
    const ValueId value = add(op, *result, operands);
    const ValueId bit = *result == Type::kI1 ? value : add(Op::k_to_i1, Type::kI1, {value});
    program_.result = add(Op::k_xor, Type::kI1, {program_.result, bit});
    ++operations_;
  }

  Type type_;
  Program program_;
  ValueId condition_ = 0;
  ValueId x_ = 0;
  ValueId y_ = 0;
  int operations_ = 0;
};

// Compiles only a problem's mask program and its intervals: other tests compile the kernel around them.
void expect_mask_compiles(const Problem& problem) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Result<ForwardConfig> config = choose_portable_config(problem, 90);
  ASSERT_TRUE(config.ok()) << config.error().message;
  KernelSource source = forward_source(problem, *config);
  source.name = "programs.cu";
  source.text =
      "#include \"program.cuh\"\n"
      "using namespace flashlift::cuda;\n"
      "extern \"C\" __global__ void probe(const __grid_constant__ ForwardParams params, int* out) {\n"
      "  out[0] = mask_mod(mask_row(0, 0, threadIdx.x, params), mask_column(0, blockIdx.x, params), 0, 0,\n"
      "                    threadIdx.x, blockIdx.x, 0, params);\n"
      "  out[1] = mask_interval(0, 0, 0, threadIdx.x, threadIdx.y, blockIdx.x, blockIdx.y, params);\n"
      "  out[2] = MaskTile::value(from_lane(MaskTile::of_query(0, 0, threadIdx.x, params), 1),\n"
      "                           from_lane(MaskTile::of_key(0, threadIdx.y, params), 2), 0, 0, threadIdx.x,\n"
      "                           threadIdx.y, params);\n}\n";
  const Result<CompiledKernel> kernel = (*nvrtc)->compile(source);
  EXPECT_TRUE(kernel.ok()) << print(problem) << ": " << kernel.error().message;
}

TEST(Emitter, EveryOperationOfEveryTypeCompiles) {
  int operations = 0;
  for (const Type type : {Type::kI1, Type::kI32, Type::kI64, Type::kF32}) {
    const EveryOperation every(type);
    operations += every.operations();
    Problem problem = every.problem();
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      problem.dtype = dtype;
      expect_mask_compiles(problem);
    }
  }
  EXPECT_GT(operations, kOpCount);
}

TEST(Emitter, LoadsOfEveryDtypeCompile) {
  for (const char* dtype : {"bool", "i8", "u8", "i16", "i32", "u32", "i64", "f16", "bf16", "f32", "f64"}) {
    const Problem problem =
        problem_of(std::string("attn h2 s512 d64 bf16 mask_mod(ids: ") + dtype +
                   "[?,?]) { %0 = load ids[b, q]; %1 = load ids[b, kv]; %2 = eq %0, %1; return %2 }");
    EXPECT_EQ(bounded_captures(problem).size(), 1U) << dtype;
    expect_mask_compiles(problem);
    const Problem plane = problem_of(std::string("attn h2 s512 d64 bf16 mask_mod(keep: ") + dtype +
                                     "[?,?,?,?]) { %0 = load keep[b, h, q, kv]; %1 = to_i1 %0; return %1 }");
    EXPECT_EQ(bounded_captures(plane).at(0).rows, 64) << dtype;
    expect_mask_compiles(plane);
  }
}

TEST(Emitter, PackedSequencesCompile) {
  expect_mask_compiles(problem_of("attn h2 s512 d64 bf16 cu_seqlens causal=bottom_right"));
}

// Only a score_mod that masks has code that finds tiles to skip, and bounds for the tensors that it reads.
TEST(Emitter, ScoreModsThatMaskHaveIntervals) {
  const std::string loads = "score_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; ";
  const Problem masks = problem_of("attn h1 s64 d64 bf16 " + loads + "%3 = select %2, score, -inf; return %3 }");
  EXPECT_NE(emit_programs(masks).find("#define FL_SCORE_MASKS 1"), std::string::npos);
  EXPECT_EQ(bounded_captures(masks).size(), 1U);
  const Problem floats = problem_of(
      "attn h1 s64 d64 bf16 softcap=5 score_mod(mask: bf16[?,?]) { %0 = load mask[q, kv]; %1 = add score, %0; "
      "return %1 }");
  EXPECT_NE(emit_programs(floats).find("#define FL_SCORE_MASKS 1"), std::string::npos);
  EXPECT_EQ(bounded_captures(floats).size(), 1U);
  const Problem table = problem_of(
      "attn h1 s64 d64 bf16 score_mod(table: f32[?]) { %0 = sub q, kv; %1 = add %0, 64; %2 = load "
      "table[%1]; %3 = add score, %2; return %3 }");
  EXPECT_NE(emit_programs(table).find("#define FL_SCORE_MASKS 0"), std::string::npos);
  EXPECT_TRUE(bounded_captures(table).empty());
  const Problem adds = problem_of("attn h1 s64 d64 bf16 " + loads + "%3 = select %2, score, 0.5; return %3 }");
  EXPECT_NE(emit_programs(adds).find("#define FL_SCORE_MASKS 0"), std::string::npos);
  EXPECT_TRUE(bounded_captures(adds).empty());
}

// Where all conditions that read captured tensors hold, only the other conditions of a mask_mod are left.
TEST(Emitter, MasksArePlainWhereTheirLoadsHold) {
  const std::string loads = "mask_mod(ids: i32[?], keep: bool[?]) { %0 = load ids[q]; %1 = load ids[kv]; ";
  const auto programs_of = [](const std::string& mask) {
    return emit_programs(problem_of("attn h1 s64 d64 bf16 " + mask));
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const std::string documents = programs_of(
      loads + "%2 = eq %0, %1; %3 = load keep[kv]; %4 = le kv, q; %5 = and %2, %4; %6 = and %5, %3; return %6 }");
  EXPECT_TRUE(has(documents, "#define FL_HAS_PLAIN_MASK 1"));
  const std::string plain = documents.substr(documents.find("bool plain_mask_mod("));
  EXPECT_FALSE(has(plain, "captures["));
  EXPECT_TRUE(has(plain, "op_le("));
  EXPECT_TRUE(has(plain, "int plain_mask_interval("));
  // Both conditions, not one of them.
  const size_t holds = documents.find("kLoadsHold");
  ASSERT_NE(holds, std::string::npos);
  const std::string condition = documents.substr(documents.rfind('\n', holds), holds - documents.rfind('\n', holds));
  EXPECT_TRUE(has(condition, " && ")) << condition;
  // Two conditions that prove nothing alone: one that `or` may replace, and one that reads a tensor besides those that
  // it compares.
  for (const char* other : {"%2 = eq %0, %1; %3 = le kv, q; %4 = or %2, %3; return %4 }",
                            "%2 = eq %0, %1; %3 = load keep[kv]; %4 = and %2, %3; return %4 }",
                            "%2 = add %1, kv; %3 = le %2, q; %4 = le %0, q; %5 = and %3, %4; return %5 }"}) {
    const std::string text = programs_of(loads + other);
    EXPECT_TRUE(has(text, "#define FL_HAS_PLAIN_MASK 0")) << other;
    EXPECT_FALSE(has(text, "kLoadsHold")) << other;
  }
  EXPECT_TRUE(has(programs_of("causal window=20"), "#define FL_HAS_PLAIN_MASK 0"));
  expect_mask_compiles(
      problem_of("attn h1 s64 d64 bf16 " + loads + "%2 = eq %0, %1; %3 = le kv, q; %4 = and %2, %3; return %4 }"));
}

// A value that is read for a query alone, or for a key alone, is passed to a mask; a value that depends on both is read
// where it is needed.
TEST(Emitter, MasksAreGivenWhatTheyReadForOnePosition) {
  const std::string text = emit_programs(problem_of(
      "attn h2 s64 d64 bf16 mask_mod(ids: i32[?], keep: bool[?,?], of: i64[2]) { %0 = load ids[q]; %1 = load "
      "ids[kv]; %2 = eq %0, %1; %3 = load keep[q, kv]; %4 = and %2, %3; %5 = load of[h]; %6 = lt %5, 4:i64; "
      "%7 = and %4, %6; return %7 }"));
  const auto part = [&](const std::string& from, const std::string& to) {
    const size_t begin = text.find(from);
    return begin == std::string::npos ? "" : text.substr(begin, text.find(to, begin) - begin);
  };
  const auto count = [](const std::string& in, const std::string& what) {
    size_t found = 0;
    for (size_t at = in.find(what); at != std::string::npos; at = in.find(what, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count(part("struct MaskOfQuery {", "}"), " v"), 2U) << "the query's id, and what the head has";
  EXPECT_EQ(count(part("struct MaskOfKey {", "}"), " v"), 1U);
  const std::string mask = part("bool mask_mod_of_values(", "return");
  EXPECT_EQ(count(mask, "op_load"), 1U) << mask;
  EXPECT_EQ(count(mask, "= of_query."), 2U) << mask;
  EXPECT_EQ(count(mask, "= of_key."), 1U) << mask;
}

// Which queries see a key, computed from the bounds and from the program itself.
TEST(Emitter, QueriesOfAKeyAreWhatTheMaskKeeps) {
  constexpr int kLength = 12;
  const auto mask_of = [](const std::string& text) { return *problem_of("attn h1 s64 d64 bf16 " + text).mask_mod; };
  const std::string begin = "mask_mod() { %0 = sub q, kv; ";
  for (const std::string& text :
       {std::string("causal"), std::string("window=3"), std::string("causal window=2"),
        begin + "%1 = lt %0, 3; %2 = gt %0, -2; %3 = and %1, %2; return %3 }", begin + "%1 = eq %0, 2; return %1 }",
        begin + "%1 = ge %0, 1; %2 = lt kv, 7; %3 = gt kv, 1; %4 = and %2, %3; %5 = and %1, %4; return %5 }",
        begin + "%1 = le 4, q; %2 = gt 9, q; %3 = ge kv, q; %4 = and %2, %3; %5 = and %1, %4; return %5 }",
        begin + "%1 = eq kv, 5; %2 = le 0, %0; %3 = and %1, %2; return %3 }"}) {
    const Program mask = mask_of(text);
    const std::optional<std::vector<QueryBound>> bounds = query_bounds(mask);
    ASSERT_TRUE(bounds) << text;
    score::Interpreter interpreter(mask, {});
    for (int kv = 0; kv < kLength; ++kv) {
      int64_t first = 0;
      int64_t last = kLength;
      for (const QueryBound& bound : *bounds) {
        const int64_t value = bound.kv * kv + bound.constant;
        first = bound.kind == QueryBound::Kind::kFirst ? std::max(first, value) : first;
        last = bound.kind == QueryBound::Kind::kLast ? std::min(last, value) : last;
        last = bound.kind == QueryBound::Kind::kAny && value > 0 ? -1 : last;
      }
      for (int q = 0; q < kLength; ++q) {
        EXPECT_EQ(first <= q && q <= last,
                  interpreter.mask_mod({.q = q, .kv = kv, .q_len = kLength, .kv_len = kLength}))
            << text << " q " << q << " kv " << kv;
      }
    }
  }
  // Conditions that are not a range, do not depend on positions alone, or contain a sum that may wrap around.
  for (const std::string& text :
       {begin + "%1 = ne %0, 2; return %1 }", begin + "%1 = lt %0, 3; %2 = gt kv, 5; %3 = or %1, %2; return %3 }",
        begin + "%1 = le %0, h; return %1 }", begin + "%1 = rem %0, 4; %2 = le %1, 2; return %2 }",
        begin + "%1 = add %0, 2000000000; %2 = le %1, 0; return %2 }",
        begin + "%1 = add q, kv; %2 = le %1, 9; return %2 }"}) {
    EXPECT_FALSE(query_bounds(mask_of(text))) << text;
  }
}

TEST(Emitter, SlidingWindowsHaveLaterQueriesForLaterKeys) {
  const std::string begin = "mask_mod() { %0 = sub q, kv; ";
  const std::string score = "score_mod() { %0 = sub q, kv; %1 = abs %0; ";
  const std::string documents = "mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; ";
  for (const auto& [text, slides] : std::initializer_list<std::pair<std::string, bool>>{
           {"causal", false},
           {"window=1024", true},
           {"causal window=1000", true},
           {"window=64,0", true},
           {"causal=bottom_right window=300,100", true},
           {"prefix=200 causal", false},
           {begin + "%1 = abs %0; %2 = le %1, 500; return %2 }", true},
           {begin + "%1 = ge %0, 0; %2 = lt %0, 1000000; %3 = and %1, %2; return %3 }", false},
           {"causal mask_mod() { %0 = floor_div q, 1000; %1 = floor_div kv, 1000; %2 = eq %0, %1; return %2 }", false},
           {"causal mask_mod() { %0 = floor_div q, 300; %1 = floor_div kv, 300; %2 = eq %0, %1; return %2 }", false},
           {"causal cu_seqlens", false},
           {documents + "return %2 }", false},
           {documents + "%3 = sub q, kv; %4 = le %3, 700; %5 = and %2, %4; return %5 }", true},
           {"mask_mod(last: i32[?]) { %0 = load last[kv]; %1 = le q, %0; return %1 }", false},
           {"", false},
           {"alibi causal", false},
           {"softcap=20 causal window=1000", true},
           {score + "%2 = lt %1, 500; %3 = select %2, score, -inf; return %3 }", true},
           {"causal " + score + "%2 = lt %1, 500; %3 = select %2, score, -inf; return %3 }", true},
           {score + "%2 = lt %1, 500; %3 = select %2, score, -1000.0; return %3 }", false},
           {score + "%2 = ge %0, 0; %3 = select %2, score, -inf; return %3 }", false}}) {
    EXPECT_EQ(is_sliding(problem_of("attn h1 s64 d64 bf16 " + text)), slides) << text;
  }
}

// The order of the fused backward kernel's key tiles depends on it.
TEST(Emitter, KeysWhoseFirstQueryIsLaterThanTheOneBefore) {
  const std::string documents = "mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; ";
  const std::string distance = "mod() { %0 = sub q, kv; ";
  for (const auto& [text, later] : std::initializer_list<std::pair<std::string, bool>>{
           {"causal", true},
           {"causal=bottom_right", true},
           {"window=1024", true},
           {"window=64,0", true},
           {"prefix=200 causal", true},
           {"causal cu_seqlens", false},  // causal within sequences, whose beginnings it reads
           {"cu_seqlens", false},
           {"causal " + documents + "return %2 }", true},
           {documents + "return %2 }", false},
           {documents + "%3 = sub q, kv; %4 = ge %3, -700; %5 = and %2, %4; return %5 }", true},
           {"causal mask_mod() { %0 = floor_div q, 1000; %1 = floor_div kv, 1000; %2 = eq %0, %1; return %2 }", true},
           {"mask_mod() { %0 = floor_div q, 1000; %1 = floor_div kv, 1000; %2 = eq %0, %1; return %2 }", false},
           {"mask_" + distance + "%1 = le %0, 0; return %1 }", false},
           {"mask_" + distance + "%1 = ge %0, -100000; return %1 }", false},
           {"score_" + distance + "%1 = ge %0, 0; %2 = select %1, score, -inf; return %2 }", true},
           {"score_" + distance + "%1 = ge %0, 0; %2 = select %1, score, -1000.0; return %2 }", false},
           {"", false},
           {"alibi causal", true}}) {
    EXPECT_EQ(begins_later(problem_of("attn h1 s64 d64 bf16 " + text)), later) << text;
  }
}

// How the gradient of a captured tensor is summed depends on which indices its elements are read at.
TEST(Emitter, GradientsOfCapturedTensors) {
  const Problem problem = problem_of(
      "attn h2 s64 d64 bf16 score_mod(slope: f32[2], key: f32[?], table: f32[?], ids: i32[?]) { %0 = load slope[h]; %1 "
      "= "
      "mul score, %0; %2 = load key[kv]; %3 = add %1, %2; %4 = sub q, kv; %5 = load table[%4]; %6 = add %3, %5; %7 = "
      "load "
      "ids[kv]; %8 = to_f32 %7; %9 = add %6, %8; return %9 }");
  ASSERT_EQ(problem.captures.size(), 4U);
  const std::string all = emit_gradient(problem, {true, true, true, false});
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t at = all.find(part); at != std::string::npos; at = all.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  for (const char* kind : {"QUERY", "KEY", "DIAGONAL"}) {
    EXPECT_NE(all.find(fmt::format("#define FL_{}_GRADIENTS 1\n", kind)), std::string::npos) << kind;
  }
  EXPECT_NE(all.find("#define FL_PLANE_GRADIENTS 0\n"), std::string::npos);
  EXPECT_EQ(count("add_row_to_gradient("), 2U) << "one slope for a row, and one key for a column";
  EXPECT_EQ(count("add_to_element<1>(element, sum, "), 1U) << "the table for a diagonal";
  EXPECT_EQ(count("(sums.element"), 0U) << "nothing for a single score";
  const std::string none = emit_gradient(problem, {});
  EXPECT_NE(none.find("#define FL_QUERY_GRADIENTS 0"), std::string::npos);
  EXPECT_EQ(none.find("add_captured"), std::string::npos);
}

TEST(Emitter, RefusesWhatHopperCannotDo) {
  const Result<ForwardConfig> config = choose_hopper_config(problem_of("attn h1 s64 d64 f32"), LengthClass::kUpTo1024);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace flashlift::cuda
