// Attention from two C++ lambdas: ALiBi as score_mod, a causal window of 256 as mask_mod.
#include <cstdio>
#include <vector>

#include "flashlift/attention.h"
#include "flashlift/builder.h"

using flashlift::Expr;

int main() {
  flashlift::Captured slopes("slopes", flashlift::DType::kF32, {8});
  auto score_mod = flashlift::trace_score_mod(
      [&](Expr score, Expr b, Expr h, Expr q, Expr kv) { return score + slopes(h) * (kv - q); });
  auto mask_mod = flashlift::trace_mask_mod([](Expr b, Expr h, Expr q, Expr kv) { return kv <= q && q - kv < 256; });

  flashlift::Problem problem{.q_heads = 8, .kv_heads = 8, .q_len = 1024, .kv_len = 1024, .scale = 0.125f};
  problem.score_mod = *score_mod;
  problem.mask_mod = *mask_mod;
  problem.captures = {slopes.capture()};

  auto attention = flashlift::Attention::compile(problem);
  if (!attention) {
    std::fprintf(stderr, "%s\n", attention.error().message.c_str());
    return 1;
  }

  const int64_t shape[] = {1, 8, 1024, 64};  // batch, heads, length, head dimension
  const int64_t slope_shape[] = {8};
  std::vector<float> q(8 * 1024 * 64, 0.5f), k = q, v = q, out = q, slope_values(8, 0.25f);
  flashlift::AttentionArguments arguments{.q = dense_view(q.data(), flashlift::DType::kF32, shape),
                                          .k = dense_view(k.data(), flashlift::DType::kF32, shape),
                                          .v = dense_view(v.data(), flashlift::DType::kF32, shape),
                                          .out = dense_view(out.data(), flashlift::DType::kF32, shape)};
  arguments.captures = {dense_view(slope_values.data(), flashlift::DType::kF32, slope_shape)};
  const auto status = attention->run(arguments);
  std::printf("%s: %s\n", attention->implementation().c_str(), status ? "done" : status.error().message.c_str());
  return status ? 0 : 1;
}
