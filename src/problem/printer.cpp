#include <fmt/format.h>

#include "flashlift/problem.h"

namespace flashlift {

std::string print(const Problem& problem) {
  std::string text =
      fmt::format("attn b{} hq{} hkv{} sq{} skv{} dqk{} dv{} {}", problem.batch, problem.q_heads, problem.kv_heads,
                  problem.q_len, problem.kv_len, problem.head_dim, problem.value_dim, to_string(problem.dtype));
  if (problem.out_dtype != problem.dtype) {
    text += fmt::format(" out={}", to_string(problem.out_dtype));
  }
  text += fmt::format(" scale={}", problem.scale);
  if (problem.sinks > 0) {
    text += fmt::format(" sinks={}", problem.sinks);
  }
  if (problem.empty_rows != EmptyRows::kZero) {
    text += fmt::format(" empty_rows={}", to_string(problem.empty_rows));
  }
  text += problem.want_lse ? " lse" : "";
  text += problem.want_row_max ? " row_max" : "";
  text += problem.normalize ? "" : " unnormalized";
  if (problem.dropout > 0) {
    text += fmt::format(" dropout={}", problem.dropout);
  }
  if (problem.page_size > 0) {
    text += fmt::format(" page_size={}", problem.page_size);
  }
  for (const auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (program->has_value()) {
      text += " " + print_one_line(**program);
    }
  }
  return text;
}

}  // namespace flashlift
