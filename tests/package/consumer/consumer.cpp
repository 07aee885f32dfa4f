// A program of somebody who installed Flashlift: two lambdas become a score program.
#include <cstdio>

#include "flashlift/builder.h"

int main() {
  using flashlift::Expr;
  const auto causal = flashlift::trace_mask_mod([](Expr, Expr, Expr q, Expr kv) { return kv <= q; });
  if (!causal) {
    std::fprintf(stderr, "%s\n", causal.error().message.c_str());
    return 1;
  }
  const auto again = flashlift::parse_program(flashlift::print(*causal));
  return again && flashlift::print(*again) == flashlift::print(*causal) ? 0 : 1;
}
