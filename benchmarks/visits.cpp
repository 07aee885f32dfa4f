// What finding the visited tiles costs: set-up (once a call), and all rows of tiles of one head.
//   cmake -B build -DFLASHLIFT_BENCHMARKS=ON && ninja -C build visits_benchmark && build/bin/visits_benchmark
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "flashlift/builder.h"
#include "visits/visits.h"

namespace flashlift {
namespace {

// The best of several, in microseconds.
double microseconds(const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best;
}

void measure(const std::string& name, const Program& program, int64_t length, const std::vector<TensorView>& captures) {
  constexpr int64_t kTile = 128;
  Problem problem;
  problem.q_len = problem.kv_len = length;
  (program.kind == ProgramKind::kMaskMod ? problem.mask_mod : problem.score_mod) = program;
  problem.captures = program.captures;
  const double setup = microseconds([&] { visits::Visits(problem, 1, length, length, captures); });
  const visits::Visits visits(problem, 1, length, length, captures);
  visits::VisitRow row;
  int64_t visited = 0;
  const double rows = microseconds([&] {
    visited = 0;
    for (int64_t q = 0; q < length; q += kTile) {
      visits.row(0, 0, 1, q, std::min(q + kTile, length), kTile, row);
      for (const visits::TileRun& run : row.runs) {
        visited += run.end - run.begin;
      }
    }
  });
  const int64_t tiles = (length + kTile - 1) / kTile;
  fmt::print("{:<28} {:>7} {:>10.1f} us {:>10.1f} us {:>8.0f} ns/row {:>9} of {} tiles\n", name, length, setup, rows,
             rows * 1000 / static_cast<double>(tiles), visited, tiles * tiles);
}

template <typename F>
Program mask(F f) {
  return *trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) { return f(q, kv); });
}

void run() {
  fmt::print("{:<28} {:>7} {:>13} {:>13}\n", "mask", "length", "set-up", "all rows");
  for (const int64_t length : {int64_t{1}, int64_t{4096}, int64_t{65536}, int64_t{131072}}) {
    std::vector<int32_t> ids(length);
    std::vector<float> table(2 * length);
    for (int64_t i = 0; i < length; ++i) {
      ids[i] = static_cast<int32_t>(i / 5000);
    }
    const Captured document("document", DType::kI32, {-1});
    const Captured bias("bias", DType::kF32, {-1});
    const std::vector<TensorView> documents = {dense_view(ids.data(), DType::kI32, std::vector<int64_t>{length})};
    const std::vector<TensorView> biases = {dense_view(table.data(), DType::kF32, std::vector<int64_t>{2 * length})};
    measure("causal", mask([](Expr q, Expr kv) { return kv <= q; }), length, {});
    measure("causal window 512", mask([](Expr q, Expr kv) { return (kv <= q) & (q - kv < 512); }), length, {});
    measure("documents", mask([&](Expr q, Expr kv) { return document(q) == document(kv); }), length, documents);
    measure("documents causal", mask([&](Expr q, Expr kv) { return (document(q) == document(kv)) & (kv <= q); }),
            length, documents);
    measure("blocks dilated by 3",
            mask([](Expr q, Expr kv) { return (kv <= q) & (mod(floor_div(q, 128) - floor_div(kv, 128), 3) == 0); }),
            length, {});
    measure("relative bias table",
            *trace_score_mod([&](Expr score, Expr, Expr, Expr q, Expr kv) { return score + bias(q - kv + q_len()); }),
            length, biases);
  }
}

}  // namespace
}  // namespace flashlift

int main() { flashlift::run(); }
