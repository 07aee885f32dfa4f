#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "flashlift/flashlift.h"
#include "support/allocation_hooks.h"

namespace {

// An array of any type with the DLTensor that describes it.
template <typename T>
struct Array {
  Array(std::vector<int64_t> shape_, DLDataType dtype, T value) : shape(std::move(shape_)) {
    int64_t count = 1;
    for (const int64_t size : shape) {
      count *= size;
    }
    data.assign(static_cast<size_t>(count), value);
    tensor = {.data = data.data(),
              .device = {kDLCPU, 0},
              .ndim = static_cast<int>(shape.size()),
              .dtype = dtype,
              .shape = shape.data(),
              .strides = nullptr,
              .byte_offset = 0};
  }
  std::vector<int64_t> shape;
  std::vector<T> data;
  DLTensor tensor;
};

constexpr DLDataType kF32 = {kDLFloat, 32, 1};

// Takes the error's text and destroys the error. The text is empty for success.
std::string take(FlashliftError* error, int expected_code = 0) {
  if (error == nullptr) {
    return "";
  }
  if (expected_code != 0) {
    EXPECT_EQ(flashlift_error_code(error), expected_code) << flashlift_error_message(error);
  }
  std::string message = flashlift_error_message(error);
  flashlift_error_destroy(error);
  return message;
}

FlashliftAttention* compiled(const char* problem) {
  FlashliftAttention* attention = nullptr;
  EXPECT_EQ(take(flashlift_attention_compile(problem, nullptr, &attention)), "");
  return attention;
}

class CApi : public testing::Test {
 protected:
  void TearDown() override { flashlift_attention_destroy(attention); }
  std::string run(int expected_code = 0) {
    return take(flashlift_attention_run(attention, &arguments, nullptr), expected_code);
  }

  FlashliftAttention* attention = compiled("attn b1 h2 s4 d8 f32 causal");
  Array<float> q{{1, 2, 4, 8}, kF32, 0.0f}, k{{1, 2, 4, 8}, kF32, 0.0f}, v{{1, 2, 4, 8}, kF32, 3.0f};
  Array<float> out{{1, 2, 4, 8}, kF32, -1.0f};
  FlashliftArguments arguments = {.struct_size = sizeof(FlashliftArguments),
                                  .q = &q.tensor,
                                  .k = &k.tensor,
                                  .v = &v.tensor,
                                  .out = &out.tensor,
                                  .captures = nullptr,
                                  .capture_count = 0,
                                  .sinks = nullptr,
                                  .lse = nullptr};
};

TEST_F(CApi, Runs) {
  EXPECT_EQ(run(), "");
  for (const float value : out.data) {
    EXPECT_NEAR(value, 3.0f, 1e-6f);
  }
}

TEST_F(CApi, ReadsStridesAndOffsets) {
  // The same memory as [batch, length, heads, depth], starting at its third element.
  std::vector<float> memory(2 + 64, 5.0f);
  std::vector<int64_t> strides = {64, 8, 16, 1};
  v.tensor.data = memory.data();
  v.tensor.byte_offset = 2 * sizeof(float);
  v.tensor.strides = strides.data();
  EXPECT_EQ(run(), "");
  EXPECT_NEAR(out.data[0], 5.0f, 1e-6f);
}

TEST_F(CApi, TellsWhatWasCompiled) {
  EXPECT_EQ(flashlift_api_version(), FLASHLIFT_API_VERSION);
  EXPECT_NE(std::string(flashlift_attention_problem(attention)).find("mask_mod"), std::string::npos);
  EXPECT_NE(std::string(flashlift_attention_implementation(attention)), "");
  EXPECT_NE(std::string(flashlift_attention_considerations(attention)).find(": accepted: "), std::string::npos);
  EXPECT_NE(std::string(flashlift_attention_backward_considerations(attention)).find(": accepted: "),
            std::string::npos);
  EXPECT_GE(flashlift_attention_workspace_bytes(attention, 2), 0);
  FlashliftProblemInfo info = {};
  info.struct_size = sizeof(info);
  EXPECT_EQ(take(flashlift_attention_info(attention, &info)), "");
  EXPECT_EQ(info.q_heads, 2);
  EXPECT_EQ(info.head_dim, 8);
  EXPECT_EQ(info.out_dtype.code, kDLFloat);
  EXPECT_EQ(info.capture_count, 0);
  EXPECT_EQ(flashlift_attention_capture_name(attention, 0), nullptr);
}

TEST_F(CApi, TellsBlocksOfAMask) {
  constexpr DLDataType kU8 = {kDLUInt, 8, 1};
  const char* problem = "attn b2 h2 s6 d8 f32 causal";
  Array<uint8_t> kinds{{1, 2, 3, 2}, kU8, 9};
  const auto ask = [&](const char* text, int64_t q_block, int64_t kv_block) {
    return take(flashlift_block_kinds(text, nullptr, 0, q_block, kv_block, &kinds.tensor));
  };
  EXPECT_EQ(ask(problem, 2, 4), "");
  EXPECT_EQ(kinds.data, (std::vector<uint8_t>{1, 0, 1, 0, 2, 1, 1, 0, 1, 0, 2, 1}));
  for (const auto& [text, q_block] : {std::pair{problem, 3}, {problem, 0}, {"attn h2", 2}, {(const char*)nullptr, 2}}) {
    kinds.data.assign(12, 9);
    EXPECT_NE(ask(text, q_block, 4), "");
    EXPECT_EQ(kinds.data, std::vector<uint8_t>(12, 9));
  }
  EXPECT_NE(ask("attn b2 h2 s6 d8 f32 mask=kv", 2, 4), "");  // without its captured tensor
  std::vector<int64_t> strides = {12, 6, 1, 3};
  kinds.tensor.strides = strides.data();
  EXPECT_NE(ask(problem, 2, 4).find("kinds: expected u8[1,2,3,2], dense"), std::string::npos);
  EXPECT_NE(take(flashlift_block_kinds(problem, nullptr, 0, 2, 4, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
  Array<uint8_t> none{{1, 2, 0, 2}, kU8, 9};
  strides.assign(4, 0);
  none.tensor.strides = strides.data();
  EXPECT_EQ(take(flashlift_block_kinds("attn h2 sq0 skv6 d8", nullptr, 0, 2, 4, &none.tensor)), "");
}

TEST_F(CApi, FillsInNoMoreThanAnOlderCallerHasRoomFor) {
  FlashliftProblemInfo info = {};
  info.struct_size = offsetof(FlashliftProblemInfo, head_dim);
  info.head_dim = -7;
  EXPECT_EQ(take(flashlift_attention_info(attention, &info)), "");
  EXPECT_EQ(info.kv_len, 4);
  EXPECT_EQ(info.head_dim, -7);
}

TEST_F(CApi, ReportsErrorsOfTheText) {
  FlashliftAttention* none = reinterpret_cast<FlashliftAttention*>(1);
  const std::string message =
      take(flashlift_attention_compile("attn h2 s4", nullptr, &none), FLASHLIFT_INVALID_ARGUMENT);
  EXPECT_NE(message, "");
  EXPECT_EQ(none, nullptr);
  EXPECT_NE(take(flashlift_attention_compile(nullptr, nullptr, &none), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_compile("attn h2 s4 d8 f32", nullptr, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
}

TEST_F(CApi, ReportsErrorsOfTheOptions) {
  FlashliftAttention* none = nullptr;
  FlashliftCompileOptions options = {};
  EXPECT_NE(take(flashlift_attention_compile("attn h2 s4 d8 f32", &options, &none), FLASHLIFT_INVALID_ARGUMENT)
                .find("struct_size is 0"),
            std::string::npos);
  options.struct_size = sizeof(options);
  options.implementation = "no such implementation";
  EXPECT_NE(take(flashlift_attention_compile("attn h2 s4 d8 f32", &options, &none)), "");
  options.implementation = nullptr;
  options.device.device_type = kDLMetal;
  EXPECT_NE(take(flashlift_attention_compile("attn h2 s4 d8 f32", &options, &none), FLASHLIFT_INVALID_ARGUMENT)
                .find("device type 8"),
            std::string::npos);
  options.device = {kDLCPU, 1};
  EXPECT_EQ(take(flashlift_attention_compile("attn h2 s4 d8 f32", &options, &none), FLASHLIFT_INVALID_ARGUMENT),
            "the device is CPU 1; expected CPU 0, which stands for all of them");
  EXPECT_EQ(none, nullptr);
  const FlashliftTuneOptions tune = {.struct_size = sizeof(tune), .device = {kDLCPU, 1}};
  EXPECT_EQ(take(flashlift_tune("attn h2 s4 d8 f32", &tune, nullptr), FLASHLIFT_INVALID_ARGUMENT),
            "the device is CPU 1; expected CPU 0, which stands for all of them");
}

TEST_F(CApi, QuotesWhatIsNoUtf8InMessagesThatAre) {
  const std::string good = "\u00e4\u20ac\U0001f600";
  const std::pair<std::string, std::string> quotes[] = {
      {good, good},
      {"a\xff\xfeZ", "a\ufffd\ufffdZ"},
      {"\xc0\xaf", "\ufffd\ufffd"},                      // a long form
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},            // a surrogate
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // beyond Unicode
      {"x\xe2\x82", "x\ufffd\ufffd"},                    // cut off
  };
  for (const auto& [given, expected] : quotes) {
    FlashliftCompileOptions options = {};
    options.struct_size = sizeof(options);
    options.implementation = given.c_str();
    FlashliftAttention* none = nullptr;
    const std::string message = take(flashlift_attention_compile("attn h2 s4 d8 f32", &options, &none));
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_EQ(none, nullptr);
  }
}

TEST_F(CApi, ReportsErrorsOfTheTensors) {
  arguments.k = nullptr;
  EXPECT_EQ(run(FLASHLIFT_INVALID_ARGUMENT), "k is NULL; expected a tensor");
  arguments.k = &k.tensor;
  k.tensor.dtype.lanes = 4;
  EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT).find("4 lanes"), std::string::npos);
  k.tensor.dtype = {kDLComplex, 64, 1};
  EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT).find("code 5, 64 bits"), std::string::npos);
  k.tensor.dtype = {kDLFloat, 16, 1};
  EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT), "");
  k.tensor.dtype = kF32;
  k.tensor.ndim = 3;
  EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT), "");
  k.tensor.ndim = 1000;
  EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT).find("1000 dimensions"), std::string::npos);
  k.tensor.ndim = 4;
  k.tensor.device = {kDLCUDA, 1};
  EXPECT_EQ(run(FLASHLIFT_INVALID_ARGUMENT), "k lies on DLPack device 2:1, but the attention was compiled for 1:0");
  k.tensor.device = {kDLCPU, 3};  // all CPUs are one
  k.shape[3] = 7;
  EXPECT_EQ(run(FLASHLIFT_INVALID_ARGUMENT).find("DLPack"), std::string::npos);
  k.shape[3] = 8;
  // More tensors than the problem has: none of them is read, since the array may end before.
  arguments.captures = reinterpret_cast<const DLTensor* const*>(alignof(DLTensor*));
  arguments.capture_count = 1;
  EXPECT_EQ(run(FLASHLIFT_INVALID_ARGUMENT), "expected 0 captured tensors, got 1");
  EXPECT_EQ(out.data, std::vector<float>(64, -1.0f));  // nothing was written by any of these
}

TEST_F(CApi, AnswersForHandlesThatAreNull) {
  EXPECT_STREQ(flashlift_error_message(nullptr), "");
  flashlift_error_destroy(nullptr);
  flashlift_attention_destroy(nullptr);
  EXPECT_STREQ(flashlift_attention_problem(nullptr), "");
  EXPECT_STREQ(flashlift_attention_implementation(nullptr), "");
  EXPECT_STREQ(flashlift_attention_considerations(nullptr), "");
  EXPECT_STREQ(flashlift_attention_backward_considerations(nullptr), "");
  EXPECT_EQ(flashlift_attention_capture_name(nullptr, 0), nullptr);
  EXPECT_EQ(flashlift_attention_workspace_bytes(nullptr, 1), -1);
  EXPECT_EQ(flashlift_attention_backward_workspace_bytes(nullptr, 1), -1);
  FlashliftProblemInfo info = {};
  info.struct_size = sizeof(info);
  EXPECT_NE(take(flashlift_attention_info(nullptr, &info), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_info(attention, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_run(nullptr, &arguments, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_run(attention, nullptr, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
}

TEST_F(CApi, RefusesPointersInTheArgumentsThatAreNull) {
  for (const DLTensor* FlashliftArguments::* tensor :
       {&FlashliftArguments::q, &FlashliftArguments::k, &FlashliftArguments::v, &FlashliftArguments::out}) {
    FlashliftArguments without = arguments;
    without.*tensor = nullptr;
    EXPECT_NE(take(flashlift_attention_run(attention, &without, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
  }
  for (Array<float>* array : {&q, &k, &v, &out}) {
    const DLTensor before = array->tensor;
    array->tensor.data = nullptr;
    EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT).find("null"), std::string::npos);
    array->tensor = before;
    array->tensor.shape = nullptr;
    EXPECT_NE(run(FLASHLIFT_INVALID_ARGUMENT).find("no shape"), std::string::npos);
    array->tensor = before;
  }
  EXPECT_EQ(run(), "");
}

TEST_F(CApi, CountsThreadsFromOne) {
  const int64_t one = flashlift_attention_workspace_bytes(attention, 1);
  EXPECT_GT(one, 0);
  for (const int32_t none : {0, -1, std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(flashlift_attention_workspace_bytes(attention, none), -1);
    EXPECT_EQ(flashlift_attention_backward_workspace_bytes(attention, none), -1);
    FlashliftExecutor executor = {.struct_size = sizeof(FlashliftExecutor),
                                  .context = nullptr,
                                  .concurrency = none,
                                  .parallel_for = [](void*, int64_t, void (*)(void*, int64_t), void*) {}};
    const FlashliftRunOptions options = {
        .struct_size = sizeof(FlashliftRunOptions), .executor = &executor, .stream = nullptr, .cancelled = nullptr};
    EXPECT_NE(take(flashlift_attention_run(attention, &arguments, &options), FLASHLIFT_INVALID_ARGUMENT), "");
  }
  EXPECT_GE(flashlift_attention_workspace_bytes(attention, std::numeric_limits<int32_t>::max()), one);
}

TEST_F(CApi, RefusesOutputsThatShareMemory) {
  const std::vector<float> before = q.data;
  arguments.out = &q.tensor;  // in place
  EXPECT_EQ(run(FLASHLIFT_INVALID_ARGUMENT), "out shares memory with q: give an output memory of its own");
  EXPECT_EQ(q.data, before);
  arguments.out = &out.tensor;
  out.tensor.data = v.data.data() + 60;  // the last four elements
  EXPECT_EQ(run(FLASHLIFT_INVALID_ARGUMENT), "out shares memory with v: give an output memory of its own");
}

TEST_F(CApi, ReportsWhatACallersExecutorThrows) {
  Array<float> large_q{{1, 2, 256, 8}, kF32, 0.0f}, large_v{{1, 2, 256, 8}, kF32, 3.0f};
  Array<float> large_out{{1, 2, 256, 8}, kF32, -1.0f};
  arguments.q = arguments.k = &large_q.tensor;
  arguments.v = &large_v.tensor;
  arguments.out = &large_out.tensor;
  FlashliftExecutor executor = {.struct_size = sizeof(FlashliftExecutor),
                                .context = nullptr,
                                .concurrency = 2,
                                .parallel_for = [](void*, int64_t, void (*)(void*, int64_t), void*) { throw 1; }};
  const FlashliftRunOptions options = {
      .struct_size = sizeof(FlashliftRunOptions), .executor = &executor, .stream = nullptr, .cancelled = nullptr};
  EXPECT_NE(take(flashlift_attention_run(attention, &arguments, &options), FLASHLIFT_INTERNAL), "");
  EXPECT_EQ(run(), "");  // no failed call holds a lock
}

class CApiBackward : public CApi {
 protected:
  std::string run_backward(int expected_code = 0) {
    return take(flashlift_attention_run_backward(attention, &backward, nullptr), expected_code);
  }
  Array<float> d_out{{1, 2, 4, 8}, kF32, 1.0f}, d_k{{1, 2, 4, 8}, kF32, -1.0f}, d_v{{1, 2, 4, 8}, kF32, -1.0f};
  FlashliftBackwardArguments backward = {.struct_size = sizeof(FlashliftBackwardArguments),
                                         .forward = &arguments,
                                         .d_out = &d_out.tensor,
                                         .d_lse = nullptr,
                                         .d_q = nullptr,
                                         .d_k = &d_k.tensor,
                                         .d_v = &d_v.tensor,
                                         .d_captures = nullptr,
                                         .d_sinks = nullptr};
};

TEST_F(CApiBackward, GivesTheGradientsThatAreAskedFor) {
  EXPECT_EQ(run(), "");
  EXPECT_EQ(run_backward(), "");
  // All scores are 0, so that query i gives 1 / (i + 1) to each of its keys.
  EXPECT_NEAR(d_v.data[0], 1.0f + 1.0f / 2 + 1.0f / 3 + 1.0f / 4, 1e-6f);
  EXPECT_NEAR(d_v.data[3 * 8], 1.0f / 4, 1e-6f);
  for (const float value : d_k.data) {
    EXPECT_NEAR(value, 0.0f, 1e-6f);
  }
}

TEST_F(CApiBackward, ReportsErrors) {
  EXPECT_EQ(run(), "");
  backward.d_lse = &d_out.tensor;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("does not ask for lse"), std::string::npos);
  backward.d_lse = nullptr;
  backward.d_sinks = &d_out.tensor;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("no sinks"), std::string::npos);
  backward.d_sinks = nullptr;
  backward.d_q = &d_k.tensor;
  d_k.shape[2] = 5;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("d_q: expected"), std::string::npos);
  backward.d_out = nullptr;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("d_out is NULL"), std::string::npos);
  backward.forward = nullptr;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("forward is NULL"), std::string::npos);
  EXPECT_NE(take(flashlift_attention_run_backward(attention, nullptr, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_run_backward(nullptr, &backward, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");

  const int32_t wanted[2] = {1, 1};
  EXPECT_EQ(take(flashlift_attention_prepare_backward(attention, nullptr, 0)), "");
  EXPECT_NE(take(flashlift_attention_prepare_backward(attention, wanted, 2), FLASHLIFT_INVALID_ARGUMENT)
                .find("wanted has 2 entries, expected"),
            std::string::npos);
  EXPECT_NE(take(flashlift_attention_prepare_backward(attention, nullptr, 1), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_prepare_backward(nullptr, nullptr, 0), FLASHLIFT_INVALID_ARGUMENT), "");
  int32_t reads = -1;
  EXPECT_EQ(take(flashlift_attention_reads_residual(attention, nullptr, 0, &reads)), "");
  EXPECT_EQ(reads, 0);  // no backward pass on a CPU reads the residual
  EXPECT_NE(take(flashlift_attention_reads_residual(attention, wanted, 2, &reads), FLASHLIFT_INVALID_ARGUMENT)
                .find("wanted has 2 entries, expected"),
            std::string::npos);
  EXPECT_NE(take(flashlift_attention_reads_residual(attention, nullptr, 0, nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_attention_reads_residual(nullptr, nullptr, 0, &reads), FLASHLIFT_INVALID_ARGUMENT), "");
  backward.forward = &arguments;
  backward.d_out = &d_out.tensor;
  backward.d_q = &q.tensor;
  d_k.shape[2] = 4;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("d_q shares memory with q"), std::string::npos);
  backward.d_q = &d_v.tensor;
  EXPECT_NE(run_backward(FLASHLIFT_INVALID_ARGUMENT).find("d_v shares memory with d_q"), std::string::npos);
  EXPECT_EQ(d_v.data, std::vector<float>(64, -1.0f));
}

// Runs half of the bodies on a second thread, and counts the bodies.
struct CountingExecutor {
  static void parallel_for(void* context, int64_t count, void (*body)(void*, int64_t), void* body_context) {
    static_cast<CountingExecutor*>(context)->bodies += count;
    const std::jthread other([=] {
      for (int64_t i = 1; i < count; i += 2) {
        body(body_context, i);
      }
    });
    for (int64_t i = 0; i < count; i += 2) {
      body(body_context, i);
    }
  }
  int64_t bodies = 0;
};

TEST_F(CApi, RunsOnALentExecutor) {
  // Large enough that more than one thread is worthwhile.
  Array<float> large_q{{1, 2, 256, 8}, kF32, 0.0f}, large_v{{1, 2, 256, 8}, kF32, 3.0f};
  Array<float> large_out{{1, 2, 256, 8}, kF32, -1.0f};
  arguments.q = arguments.k = &large_q.tensor;
  arguments.v = &large_v.tensor;
  arguments.out = &large_out.tensor;
  CountingExecutor counting;
  FlashliftExecutor executor = {.struct_size = sizeof(FlashliftExecutor),
                                .context = &counting,
                                .concurrency = 2,
                                .parallel_for = CountingExecutor::parallel_for};
  const FlashliftRunOptions options = {
      .struct_size = sizeof(FlashliftRunOptions), .executor = &executor, .stream = nullptr, .cancelled = nullptr};
  EXPECT_EQ(take(flashlift_attention_run(attention, &arguments, &options)), "");
  for (const float value : large_out.data) {
    ASSERT_NEAR(value, 3.0f, 1e-5f);
  }
  EXPECT_GT(counting.bodies, 0);
  const auto refusal = [&] {
    return take(flashlift_attention_run(attention, &arguments, &options), FLASHLIFT_INVALID_ARGUMENT);
  };
  executor.concurrency = 0;
  EXPECT_EQ(refusal(), "FlashliftExecutor::concurrency is 0; expected at least 1");
  executor.parallel_for = nullptr;
  EXPECT_EQ(refusal(), "FlashliftExecutor::parallel_for is NULL; expected a function");
}

TEST_F(CApi, EndsACancelledCall) {
  const int32_t cancelled = 1;
  const FlashliftRunOptions options = {
      .struct_size = sizeof(FlashliftRunOptions), .executor = nullptr, .stream = nullptr, .cancelled = &cancelled};
  EXPECT_NE(take(flashlift_attention_run(attention, &arguments, &options), FLASHLIFT_CANCELLED), "");
}

TEST(CApiTwoOutputs, PassesCapturesSinksAndLseAndAllocatesNothingOnceWarm) {
  FlashliftAttention* attention = compiled(
      "attn b1 h2 s3 d4 f32 sinks=1 lse "
      "score_mod(bias: f32[3]) { %0 = load bias[kv]; %1 = add score, %0; return %1 }");
  ASSERT_NE(attention, nullptr);
  EXPECT_STREQ(flashlift_attention_capture_name(attention, 0), "bias");
  Array<float> q{{1, 2, 3, 4}, kF32, 0.0f}, v{{1, 2, 3, 4}, kF32, 2.0f}, out{{1, 2, 3, 4}, kF32, -1.0f};
  Array<float> bias{{3}, kF32, 0.0f}, sinks{{2, 1}, kF32, 0.0f}, lse{{1, 2, 3}, kF32, -1.0f};
  const DLTensor* captures[] = {&bias.tensor};
  const FlashliftArguments arguments = {.struct_size = sizeof(FlashliftArguments),
                                        .q = &q.tensor,
                                        .k = &q.tensor,
                                        .v = &v.tensor,
                                        .out = &out.tensor,
                                        .captures = captures,
                                        .capture_count = 1,
                                        .sinks = &sinks.tensor,
                                        .lse = &lse.tensor};
  EXPECT_EQ(take(flashlift_attention_run(attention, &arguments, nullptr)), "");
  EXPECT_NEAR(out.data[0], 2.0f * 3.0f / 4.0f, 1e-6f);  // three keys and one sink, all with score 0
  EXPECT_NEAR(lse.data[5], std::log(4.0f), 1e-6f);

  Array<float> d_bias{{3}, kF32, -1.0f}, d_v{{1, 2, 3, 4}, kF32, -1.0f};
  const DLTensor* d_captures[] = {&d_bias.tensor};
  const FlashliftBackwardArguments backward = {.struct_size = sizeof(FlashliftBackwardArguments),
                                               .forward = &arguments,
                                               .d_out = &q.tensor,
                                               .d_lse = nullptr,
                                               .d_q = nullptr,
                                               .d_k = nullptr,
                                               .d_v = &d_v.tensor,
                                               .d_captures = d_captures,
                                               .d_sinks = nullptr};
  EXPECT_EQ(take(flashlift_attention_run_backward(attention, &backward, nullptr)), "");
  EXPECT_EQ(d_bias.data, std::vector<float>(3, 0.0f));  // d_out is 0

  const int64_t before = flashlift::testing::allocation_count();
  EXPECT_EQ(flashlift_attention_run(attention, &arguments, nullptr), nullptr);
  EXPECT_EQ(flashlift_attention_run_backward(attention, &backward, nullptr), nullptr);
  EXPECT_EQ(flashlift::testing::allocation_count(), before) << "a warmed call allocates";
  flashlift_attention_destroy(attention);
}

TEST(CApiThreads, CompileAndRunAtTheSameTime) {
  std::vector<std::jthread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&good] {
      FlashliftAttention* attention = nullptr;
      Array<float> q{{1, 2, 4, 8}, kF32, 0.0f}, v{{1, 2, 4, 8}, kF32, 3.0f}, out{{1, 2, 4, 8}, kF32, -1.0f};
      const FlashliftArguments arguments = {.struct_size = sizeof(FlashliftArguments),
                                            .q = &q.tensor,
                                            .k = &q.tensor,
                                            .v = &v.tensor,
                                            .out = &out.tensor,
                                            .captures = nullptr,
                                            .capture_count = 0,
                                            .sinks = nullptr,
                                            .lse = nullptr};
      FlashliftError* error = flashlift_attention_compile("attn b1 h2 s4 d8 f32 window=2", nullptr, &attention);
      error = error == nullptr ? flashlift_attention_run(attention, &arguments, nullptr) : error;
      good += error == nullptr && std::abs(out.data[17] - 3.0f) < 1e-6f ? 1 : 0;
      flashlift_error_destroy(error);
      flashlift_attention_destroy(attention);
    });
  }
  threads.clear();
  EXPECT_EQ(good, 8);
}

// pthread_cancel() ends a thread by an exception, which must not meet C functions: they cannot throw.
TEST(CApiThreads, AreCancelledBetweenCallsOnly) {
  std::atomic<bool> returned{false};
  pthread_t thread{};
  const auto body = [](void* has_returned) -> void* {
    const FlashliftTuneOptions options = {.struct_size = sizeof(FlashliftTuneOptions),
                                          .device = {},
                                          .backward = 0,
                                          .heads_inside = 0,
                                          .seconds = 0.01,
                                          .tuning_policy = FLASHLIFT_TUNING_OFF,
                                          .on_progress =
                                              [](void*, double, int32_t) {
                                                pthread_testcancel();
                                                return 0;
                                              },
                                          .context = nullptr};
    pthread_cancel(pthread_self());
    *static_cast<std::atomic<bool>*>(has_returned) = take(flashlift_tune("attn h1 s8 d8", &options, nullptr)).empty();
    pthread_testcancel();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, body, &returned), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_TRUE(returned);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST(CProblem, SaysWhatATextSays) {
  FlashliftProblem* problem = nullptr;
  EXPECT_EQ(take(flashlift_problem_read("attn b2 h4 bf16 causal window=3,0 softcap=30 mask=bool lse "
                                        "mask_mod() { return true }",
                                        &problem)),
            "");
  EXPECT_STREQ(flashlift_problem_json(problem),
               R"({"sizes": {"b": 2, "h": 4}, "dtype": "bf16", "words": {"causal": true, "window": [3, 0], )"
               R"("mask": "bool", "softcap": 30, "lse": true}, "score_mod": null, )"
               R"("mask_mod": "mask_mod() { return true }"})");
  flashlift_problem_destroy(problem);
  flashlift_problem_destroy(nullptr);
  EXPECT_STREQ(flashlift_problem_json(nullptr), "");
}

TEST(CProblem, RefusesWhatIsNoText) {
  FlashliftProblem* problem = nullptr;
  const std::string message = take(flashlift_problem_read("attn h2 causall", &problem), FLASHLIFT_INVALID_ARGUMENT);
  EXPECT_NE(message.find("did you mean `causal`?"), std::string::npos) << message;
  EXPECT_EQ(problem, nullptr);
  EXPECT_NE(take(flashlift_problem_read(nullptr, &problem), FLASHLIFT_INVALID_ARGUMENT), "");
  EXPECT_NE(take(flashlift_problem_read("attn h2", nullptr), FLASHLIFT_INVALID_ARGUMENT), "");
}

}  // namespace
