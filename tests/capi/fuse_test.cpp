#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "flashlift/flashlift_stablehlo.h"

namespace {

constexpr const char* kAttention = R"(
module @attention {
  func.func public @main(%q: tensor<5x8xf32>, %k: tensor<7x8xf32>, %v: tensor<7x8xf32>) -> tensor<5x8xf32> {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<5x8xf32>, tensor<7x8xf32>) -> tensor<5x7xf32>
    %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<5x7xf32>, tensor<f32>) -> tensor<5xf32>
    %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<5xf32>) -> tensor<5x7xf32>
    %d = stablehlo.subtract %s, %mb : tensor<5x7xf32>
    %e = stablehlo.exponential %d : tensor<5x7xf32>
    %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<5x7xf32>, tensor<f32>) -> tensor<5xf32>
    %lb = stablehlo.broadcast_in_dim %l, dims = [0] : (tensor<5xf32>) -> tensor<5x7xf32>
    %p = stablehlo.divide %e, %lb : tensor<5x7xf32>
    %o = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<5x7xf32>, tensor<7x8xf32>) -> tensor<5x8xf32>
    return %o : tensor<5x8xf32>
  }
}
)";
constexpr const char* kNoAttention = R"(
module @plain {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
)";

TEST(CApiFuse, ReplacesAttention) {
  for (const FlashliftFuseAs as : {FLASHLIFT_CUSTOM_CALL, FLASHLIFT_COMPOSITE}) {
    const FlashliftFuseOptions options = {.struct_size = sizeof(options), .as = as, .name = nullptr};
    FlashliftFused* fused = nullptr;
    FlashliftError* error = flashlift_stablehlo_fuse(kAttention, std::strlen(kAttention), &options, &fused);
    ASSERT_EQ(error, nullptr) << flashlift_error_message(error);
    EXPECT_EQ(flashlift_fused_count(fused), 1u) << flashlift_fused_report(fused);
    size_t size = 0;
    const char* module = flashlift_fused_module(fused, &size);
    EXPECT_EQ(std::strlen(module), size);
    EXPECT_NE(std::strstr(module, "flashlift.attention"), nullptr) << module;
    EXPECT_NE(std::strstr(flashlift_fused_report(fused), "\"problem\""), nullptr);
    flashlift_fused_destroy(fused);
  }
}

TEST(CApiFuse, TakesAndGivesBytes) {
  FlashliftFuseOptions options = {};
  options.struct_size = sizeof(options);
  options.emit = "vhlo=1.9.0";
  FlashliftFused* portable = nullptr;
  FlashliftError* error = flashlift_stablehlo_fuse(kAttention, std::strlen(kAttention), &options, &portable);
  ASSERT_EQ(error, nullptr) << flashlift_error_message(error);
  size_t size = 0;
  const char* bytes = flashlift_fused_module(portable, &size);
  EXPECT_NE(std::string_view(bytes, size).find("StableHLO_v1.9.0"), std::string_view::npos);
  options.emit = "text";
  FlashliftFused* text = nullptr;
  error = flashlift_stablehlo_fuse(bytes, size, &options, &text);
  ASSERT_EQ(error, nullptr) << flashlift_error_message(error);
  EXPECT_NE(std::strstr(flashlift_fused_module(text, nullptr), "flashlift.attention"), nullptr);
  flashlift_fused_destroy(text);
  flashlift_fused_destroy(portable);
  options.emit = "vhlo=1";
  error = flashlift_stablehlo_fuse(kNoAttention, std::strlen(kNoAttention), &options, &text);
  ASSERT_NE(error, nullptr);
  EXPECT_NE(std::strstr(flashlift_error_message(error), "vhlo=VERSION"), nullptr);
  flashlift_error_destroy(error);
}

TEST(CApiFuse, AnswersForNull) {
  size_t size = 7;
  EXPECT_STREQ(flashlift_fused_module(nullptr, &size), "");
  EXPECT_EQ(size, 0u);
  EXPECT_STREQ(flashlift_fused_module(nullptr, nullptr), "");
  EXPECT_EQ(flashlift_fused_count(nullptr), 0u);
  EXPECT_STREQ(flashlift_fused_report(nullptr), "[]");
  flashlift_fused_destroy(nullptr);
  FlashliftFused* fused = nullptr;
  for (FlashliftError* error : {flashlift_stablehlo_fuse(nullptr, 1, nullptr, &fused),
                                flashlift_stablehlo_fuse(kNoAttention, 1, nullptr, nullptr)}) {
    EXPECT_EQ(flashlift_error_code(error), FLASHLIFT_INVALID_ARGUMENT);
    flashlift_error_destroy(error);
  }
}

TEST(CApiFuse, LeavesTheRestByteForByte) {
  FlashliftFused* fused = nullptr;
  ASSERT_EQ(flashlift_stablehlo_fuse(kNoAttention, std::strlen(kNoAttention), nullptr, &fused), nullptr);
  EXPECT_EQ(flashlift_fused_count(fused), 0u);
  EXPECT_STREQ(flashlift_fused_module(fused, nullptr), kNoAttention);
  EXPECT_STREQ(flashlift_fused_report(fused), "[]");
  flashlift_fused_destroy(fused);
}

TEST(CApiFuse, SkipsWhatIsUnchanged) {
  FlashliftFuseOptions options = {};
  options.struct_size = sizeof(options);
  options.skip_unchanged = 1;
  for (const char* emit : {"", "vhlo"}) {
    options.emit = emit;
    for (const char* module : {kNoAttention, kAttention}) {
      FlashliftFused* fused = nullptr;
      FlashliftError* error = flashlift_stablehlo_fuse(module, std::strlen(module), &options, &fused);
      ASSERT_EQ(error, nullptr) << flashlift_error_message(error);
      size_t size = 0;
      flashlift_fused_module(fused, &size);
      EXPECT_EQ(size == 0, module == kNoAttention);
      flashlift_fused_destroy(fused);
    }
  }
}

TEST(CApiFuse, ReportsErrors) {
  FlashliftFused* fused = nullptr;
  FlashliftError* error = flashlift_stablehlo_fuse("module {", 8, nullptr, &fused);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(flashlift_error_code(error), FLASHLIFT_INVALID_ARGUMENT);
  EXPECT_NE(std::string(flashlift_error_message(error)), "");
  EXPECT_EQ(fused, nullptr);
  flashlift_error_destroy(error);
  const FlashliftFuseOptions options = {.struct_size = sizeof(options), .as = 7, .name = nullptr};
  error = flashlift_stablehlo_fuse(kNoAttention, std::strlen(kNoAttention), &options, &fused);
  ASSERT_NE(error, nullptr);
  EXPECT_NE(std::string(flashlift_error_message(error)).find("as is 7"), std::string::npos);
  flashlift_error_destroy(error);
}

}  // namespace
