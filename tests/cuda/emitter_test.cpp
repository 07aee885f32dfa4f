#include "cuda/emit/program_emitter.h"

#include <gtest/gtest.h>

#include "cuda/compile/nvrtc.h"
#include "cuda/emit/kernel_source.h"
#include "flashlift/problem.h"
#include "score/verify.h"

namespace flashlift::cuda {
namespace {

Problem problem_of(const std::string& text) {
  Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << text << ": " << problem.error().message;
  return *problem;
}

// One program that applies an operation to values of one type, as score_mod and, compared with 0, as mask_mod.
std::optional<Problem> problem_with(Op op, Type type) {
  Program program;
  program.kind = ProgramKind::kMaskMod;
  const auto add = [&](Op node_op, Type node_type, std::vector<ValueId> operands, int64_t payload = 0) {
    program.nodes.push_back({node_op, node_type, std::move(operands), payload});
    return static_cast<ValueId>(program.nodes.size() - 1);
  };
  const auto converted = [&](ValueId value, Type to) {
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
  };
  const ValueId x = converted(add(Op::k_q, Type::kI32, {}), type);
  const ValueId y = converted(add(Op::k_kv, Type::kI32, {}), type);
  std::vector<ValueId> operands;
  if (op == Op::k_select) {
    operands = {converted(1, Type::kI1), x, y};
  } else if (info(op).arity == 1 && !reads_capture(op)) {
    operands = {x};
  } else if (info(op).arity == 2) {
    operands = {x, y};
  } else {
    return std::nullopt;  // inputs, constants, loads and searches have tests of their own
  }
  std::vector<Type> types;
  for (const ValueId operand : operands) {
    types.push_back(program.nodes[operand].type);
  }
  const Result<Type> result = score::result_type(op, types, type);
  if (!result.ok()) {
    return std::nullopt;
  }
  const ValueId value = add(op, *result, operands);
  program.result = *result == Type::kI1 ? value : add(Op::k_to_i1, Type::kI1, {value});
  Problem problem = problem_of("attn h1 s64 d64 bf16");
  problem.mask_mod = program;
  EXPECT_TRUE(verify(problem).ok()) << verify(problem).error().message;
  return problem;
}

// All operations of a type in one kernel would be quick to compile, and slow to tell which one is missing.
TEST(Emitter, EveryOperationOfEveryTypeCompiles) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  int compiled = 0;
  for (int op = 0; op < kOpCount; ++op) {
    for (const Type type : {Type::kI1, Type::kI32, Type::kI64, Type::kF32}) {
      const std::optional<Problem> problem = problem_with(static_cast<Op>(op), type);
      if (!problem) {
        continue;
      }
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        // Only the programs: the kernel around them is the other tests' business.
        KernelSource source;
        Problem typed = *problem;
        typed.dtype = dtype;
        const Result<ForwardConfig> config = choose_hopper_config(*problem);
        ASSERT_TRUE(config.ok());
        source = forward_source(typed, *config);
        source.name = "programs.cu";
        source.text =
            "#include \"program.cuh\"\n"
            "using namespace flashlift::cuda;\n"
            "extern \"C\" __global__ void probe(const __grid_constant__ ForwardParams params, int* out) {\n"
            "  out[0] = mask_mod(0, 0, threadIdx.x, blockIdx.x, params);\n"
            "  out[1] = mask_interval(0, 0, threadIdx.x, threadIdx.y, blockIdx.x, blockIdx.y, params);\n}\n";
        for (std::string& option : source.options) {
          if (option.starts_with("-DFL_INPUT_F32=")) {
            option = dtype == DType::kF32 ? "-DFL_INPUT_F32=1" : "-DFL_INPUT_F32=0";
          }
        }
        const Result<CompiledKernel> kernel = (*nvrtc)->compile(source);
        EXPECT_TRUE(kernel.ok()) << info(static_cast<Op>(op)).name << " on " << to_string(type) << ": "
                                 << kernel.error().message;
        ++compiled;
      }
    }
  }
  EXPECT_GT(compiled, 2 * kOpCount);
}

TEST(Emitter, LoadsOfEveryDtypeCompile) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  for (const char* dtype : {"bool", "i8", "u8", "i16", "i32", "u32", "i64", "f16", "bf16", "f32", "f64"}) {
    const Problem problem =
        problem_of(std::string("attn h2 s512 d64 bf16 mask_mod(ids: ") + dtype +
                   "[?,?]) { %0 = load ids[b, q]; %1 = load ids[b, kv]; %2 = eq %0, %1; return %2 }");
    const bool integer = std::string(dtype).find('f') == std::string::npos;
    EXPECT_EQ(bounded_captures(problem).size(), integer ? 1U : 0U) << dtype;
    const Result<ForwardConfig> config = choose_hopper_config(problem);
    ASSERT_TRUE(config.ok());
    const Result<CompiledKernel> kernel = (*nvrtc)->compile(forward_source(problem, *config));
    EXPECT_TRUE(kernel.ok()) << dtype << ": " << kernel.error().message;
  }
}

TEST(Emitter, PackedSequencesCompile) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Problem problem = problem_of("attn h2 s512 d64 bf16 cu_seqlens causal=bottom_right");
  const Result<ForwardConfig> config = choose_hopper_config(problem);
  ASSERT_TRUE(config.ok());
  const Result<CompiledKernel> kernel = (*nvrtc)->compile(forward_source(problem, *config));
  EXPECT_TRUE(kernel.ok()) << kernel.error().message;
}

TEST(Emitter, RefusesWhatHopperCannotDo) {
  const Result<ForwardConfig> config = choose_hopper_config(problem_of("attn h1 s64 d64 f32"));
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace flashlift::cuda
