// Visited tiles, compared with enumeration: for random programs none is missing, and for common masks none is
// superfluous.
#include "visits/visits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "flashlift/builder.h"
#include "score/interpret.h"
#include "score/random_program.h"

namespace flashlift::visits {
namespace {

Problem make_problem(std::optional<Program> score_mod, std::optional<Program> mask_mod, int64_t q_len, int64_t kv_len) {
  Problem problem;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  problem.score_mod = std::move(score_mod);
  problem.mask_mod = std::move(mask_mod);
  problem.captures = *collect_captures(problem.score_mod, problem.mask_mod);
  return problem;
}

// The kind of each tile of one head, found by looking at every score.
class Enumerated {
 public:
  Enumerated(const Problem& problem, const std::vector<TensorView>& captures, int64_t b, int64_t h)
      : problem_(problem), kept_(problem.q_len * problem.kv_len), finite_(kept_.size(), true) {
    std::optional<score::Interpreter> mask;
    std::optional<score::Interpreter> score;
    const auto views = [&](const Program& program) {
      std::vector<TensorView> read;
      for (const Capture& capture : program.captures) {
        for (size_t i = 0; i < problem.captures.size(); ++i) {
          if (problem.captures[i].name == capture.name) {
            read.push_back(captures[i]);
          }
        }
      }
      return read;
    };
    const auto mask_views = problem.mask_mod ? views(*problem.mask_mod) : std::vector<TensorView>{};
    const auto score_views = problem.score_mod ? views(*problem.score_mod) : std::vector<TensorView>{};
    if (problem.mask_mod) {
      mask.emplace(*problem.mask_mod, mask_views);
    }
    if (problem.score_mod) {
      score.emplace(*problem.score_mod, score_views);
    }
    size_t i = 0;
    for (int64_t q = 0; q < problem.q_len; ++q) {
      for (int64_t kv = 0; kv < problem.kv_len; ++kv, ++i) {
        const score::Coordinates at{.b = static_cast<int32_t>(b),
                                    .h = static_cast<int32_t>(h),
                                    .q = static_cast<int32_t>(q),
                                    .kv = static_cast<int32_t>(kv),
                                    .q_len = static_cast<int32_t>(problem.q_len),
                                    .kv_len = static_cast<int32_t>(problem.kv_len)};
        kept_[i] = !mask || mask->mask_mod(at);
        for (const double value : {-3.0, 0.7, 20.0}) {
          if (score && score->score_mod(value, at) == -INFINITY) {
            finite_[i] = false;
          }
        }
      }
    }
  }

  TileKind kind(const TileBox& box) const {
    bool any = false;
    bool all = true;
    for (int64_t q = box.q_begin; q < box.q_end; ++q) {
      for (int64_t kv = box.kv_begin; kv < box.kv_end; ++kv) {
        const size_t i = q * problem_.kv_len + kv;
        any |= kept_[i] && finite_[i];
        all &= kept_[i];
      }
    }
    return !any ? TileKind::kSkipped : (all ? TileKind::kFull : TileKind::kPartial);
  }

 private:
  const Problem& problem_;
  std::vector<bool> kept_;
  std::vector<bool> finite_;
};

enum class Expect { kSound, kExact };

// Compares rows and columns of tiles of every head with enumeration. Returns how many tiles were skipped or full.
int64_t check(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_tile, int64_t kv_tile,
              Expect expect) {
  const Visits visits(problem, problem.batch, problem.q_len, problem.kv_len, captures);
  const int64_t q_tiles = (problem.q_len + q_tile - 1) / q_tile;
  const int64_t kv_tiles = (problem.kv_len + kv_tile - 1) / kv_tile;
  int64_t decided = 0;
  VisitRow row;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.q_heads; ++h) {
      const Enumerated truth(problem, captures, b, h);
      const auto expand = [&](int64_t tiles) {
        std::vector<TileKind> kinds(tiles, TileKind::kSkipped);
        int64_t last = 0;
        for (const TileRun& run : row.runs) {
          EXPECT_TRUE(last <= run.begin && run.begin < run.end && run.end <= tiles) << "runs rise and do not overlap";
          EXPECT_NE(run.kind, TileKind::kSkipped);
          last = run.end;
          std::fill(kinds.begin() + run.begin, kinds.begin() + run.end, run.kind);
        }
        return kinds;
      };
      std::vector<std::vector<TileKind>> columns;
      for (int64_t j = 0; j < kv_tiles; ++j) {
        visits.column(b, h, h + 1, j * kv_tile, std::min((j + 1) * kv_tile, problem.kv_len), q_tile, row);
        columns.push_back(expand(q_tiles));
      }
      for (int64_t i = 0; i < q_tiles; ++i) {
        TileBox box{.b = b,
                    .h_begin = h,
                    .h_end = h + 1,
                    .q_begin = i * q_tile,
                    .q_end = std::min((i + 1) * q_tile, problem.q_len)};
        visits.row(b, h, h + 1, box.q_begin, box.q_end, kv_tile, row);
        const std::vector<TileKind> kinds = expand(kv_tiles);
        for (int64_t j = 0; j < kv_tiles; ++j) {
          box.kv_begin = j * kv_tile;
          box.kv_end = std::min((j + 1) * kv_tile, problem.kv_len);
          const TileKind expected = truth.kind(box);
          const auto judge = [&](TileKind got, const char* how) {
            decided += got != TileKind::kPartial ? 1 : 0;
            if (expect == Expect::kExact) {
              ASSERT_EQ(got, expected) << how << ": tile " << i << ", " << j << " of head " << h;
            } else if (got != TileKind::kPartial && expected != got) {
              // In skipped tiles no score may be kept; in full ones none may be masked, except by score_mod.
              const bool fine = got == TileKind::kFull && expected == TileKind::kSkipped && problem.score_mod;
              ASSERT_TRUE(fine) << how << ": tile " << i << ", " << j << " of head " << h;
            }
          };
          judge(kinds[j], "row");
          judge(columns[j][i], "column");
          if (testing::Test::HasFailure()) {
            return decided;
          }
        }
      }
    }
  }
  return decided;
}

struct Tiling {
  int64_t q_len;
  int64_t kv_len;
  int64_t q_tile;
  int64_t kv_tile;
};
const Tiling kTilings[] = {
    {256, 256, 32, 32}, {250, 313, 32, 48}, {97, 400, 64, 17}, {400, 97, 31, 64}, {1, 300, 1, 64}};

template <typename F>
void expect_exact(F mask_mod, const std::vector<TensorView>& captures = {}) {
  for (const Tiling& t : kTilings) {
    const auto program = trace_mask_mod([&](Expr b, Expr h, Expr q, Expr kv) { return mask_mod(b, h, q, kv); });
    ASSERT_TRUE(program.ok()) << program.error().message;
    check(make_problem(std::nullopt, *program, t.q_len, t.kv_len), captures, t.q_tile, t.kv_tile, Expect::kExact);
  }
}

TEST(VisitsAreExact, Causal) {
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return kv <= q; });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return kv <= q + kv_len() - q_len(); });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return kv < q; });
}

TEST(VisitsAreExact, Windows) {
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return (q - kv < 50) & (kv <= q); });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return (kv >= q - 20) & (kv <= q + 70); });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return abs(q - kv) <= 64; });
  expect_exact([](Expr, Expr, Expr q, Expr kv) {
    const Expr at = q + kv_len() - q_len();
    return (at - kv < 33) & (at >= kv);
  });
}

TEST(VisitsAreExact, Prefix) {
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return (kv < 100) | (kv <= q); });
}

TEST(VisitsAreExact, ChunksAndDilatedBlocks) {
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return floor_div(q, 64) == floor_div(kv, 64); });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return (q / 40 == kv / 40) & (kv <= q); });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return mod(floor_div(q, 32) - floor_div(kv, 32), 3) == 0; });
  expect_exact([](Expr, Expr, Expr q, Expr kv) { return (((q >> 5) ^ (kv >> 5)) & 1) == 0; });
}

TEST(VisitsAreExact, DocumentsAndSegments) {
  std::vector<int32_t> ids(400);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i < 70 ? 0 : (i < 75 ? 1 : (i < 200 ? 2 : 5));
  }
  const Captured document("document", DType::kI32, {-1});
  const std::vector<TensorView> views = {dense_view(ids.data(), DType::kI32, std::vector<int64_t>{400})};
  expect_exact([&](Expr, Expr, Expr q, Expr kv) { return document(q) == document(kv); }, views);
  expect_exact([&](Expr, Expr, Expr q, Expr kv) { return (document(q) == document(kv)) & (kv <= q); }, views);

  std::vector<uint8_t> segments(400);
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i] = static_cast<uint8_t>(i / 128);
  }
  const Captured q_segment("q_segment", DType::kI32, {-1});
  const Captured kv_segment("kv_segment", DType::kU8, {1, -1});
  const std::vector<TensorView> both = {views[0],
                                        dense_view(segments.data(), DType::kU8, std::vector<int64_t>{1, 400})};
  const auto same_segment = [&](Expr b, Expr, Expr q, Expr kv) {
    const Expr of_query = q_segment(q);  // read first: captured tensors are numbered in the order of first use
    return of_query == kv_segment(b, kv);
  };
  expect_exact(same_segment, both);
}

TEST(VisitsAreExact, DocumentsByOffsets) {
  std::vector<int64_t> starts(400);
  for (size_t i = 0; i < starts.size(); ++i) {
    starts[i] = i < 70 ? 0 : (i < 210 ? 70 : 210);
  }
  const Captured start("start", DType::kI64, {-1});
  const std::vector<TensorView> views = {dense_view(starts.data(), DType::kI64, std::vector<int64_t>{400})};
  expect_exact([&](Expr, Expr, Expr q, Expr kv) { return (kv >= start(q)) & (kv <= q); }, views);
}

TEST(VisitsAreExact, MaskTensors) {
  std::vector<uint8_t> keep(400 * 400);
  std::vector<float> bias(400 * 400);
  for (int64_t q = 0; q < 400; ++q) {
    for (int64_t kv = 0; kv < 400; ++kv) {
      const bool kept = kv <= q + 30 && (q / 100 != 1 || kv / 64 != 2);
      keep[q * 400 + kv] = kept ? 1 : 0;
      bias[q * 400 + kv] = kept ? 0.25f : -INFINITY;
    }
  }
  const Captured mask("mask", DType::kBool, {400, 400});
  const std::vector<int64_t> shape = {400, 400};
  expect_exact([&](Expr, Expr, Expr q, Expr kv) { return mask(q, kv); },
               {dense_view(keep.data(), DType::kBool, shape)});

  // An additive mask: only tiles that are -inf throughout are skipped, and a score_mod leaves the other tiles full.
  const Captured added("added", DType::kF32, {400, 400});
  const auto score_mod = trace_score_mod([&](Expr score, Expr, Expr, Expr q, Expr kv) { return score + added(q, kv); });
  const std::vector<TensorView> views = {dense_view(bias.data(), DType::kF32, shape)};
  const Problem problem = make_problem(*score_mod, std::nullopt, 400, 400);
  const Visits visits(problem, 1, 400, 400, views);
  const Enumerated truth(problem, views, 0, 0);
  std::vector<score::Interval> scratch;
  int64_t skipped = 0;
  for (int64_t q = 0; q < 400; q += 50) {
    for (int64_t kv = 0; kv < 400; kv += 32) {
      const TileBox box{
          .h_end = 1, .q_begin = q, .q_end = q + 50, .kv_begin = kv, .kv_end = std::min<int64_t>(kv + 32, 400)};
      const TileKind kind = visits.classify(box, scratch);
      EXPECT_EQ(kind, truth.kind(box));
      skipped += kind == TileKind::kSkipped ? 1 : 0;
    }
  }
  EXPECT_GT(skipped, 20);
}

// The keys are those of the queries, followed by further copies, of which each query sees only its own.
TEST(VisitsAreExact, Eagle3) {
  std::vector<int32_t> lengths = {230};
  const Captured length("length", DType::kI32, {1});
  const std::vector<TensorView> views = {dense_view(lengths.data(), DType::kI32, std::vector<int64_t>{1})};
  const auto program = trace_mask_mod([&](Expr b, Expr, Expr q, Expr kv) {
    const Expr causal = (kv <= q) & (kv < length(b));
    const Expr diagonal = (kv >= q_len()) & (mod(kv, q_len()) < length(b)) & (mod(kv - q, q_len()) == 0);
    return causal | diagonal;
  });
  for (const auto& [q_tile, kv_tile] :
       {std::pair(32, 32), std::pair(64, 32), std::pair(32, 128), std::pair(128, 128)}) {
    check(make_problem(std::nullopt, *program, 256, 768), views, q_tile, kv_tile, Expect::kExact);
  }
}

TEST(VisitsAreExact, ScoreModsThatGiveMinusInfinity) {
  const Problem problem = make_problem(*trace_score_mod([](Expr score, Expr, Expr, Expr q, Expr kv) {
    return select(kv <= q, tanh(score / 30.0) * 30.0, Expr(-HUGE_VALF));
  }),
                                       std::nullopt, 200, 200);
  const Visits visits(problem, 1, 200, 200, {});
  VisitRow row;
  visits.row(0, 0, 1, 64, 96, 32, row);
  ASSERT_EQ(row.runs.size(), 1u);
  EXPECT_EQ(row.runs[0], (TileRun{0, 3, TileKind::kFull}));  // no mask_mod to run
}

TEST(Visits, SoundOnRandomPrograms) {
  std::mt19937 random(11);
  int64_t decided = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int32_t> ids(40);
    std::vector<float> bias(40 * 3);
    std::vector<uint8_t> keep(30 * 30);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(i / 15);
    }
    for (float& value : bias) {
      value = random() % 3 == 0 ? -INFINITY : 1.5f;
    }
    for (size_t i = 0; i < keep.size(); ++i) {
      keep[i] = i / 300 == 1 ? 1 : random() % 2;
    }
    const std::vector<TensorView> views = {dense_view(ids.data(), DType::kI32, std::vector<int64_t>{40}),
                                           dense_view(bias.data(), DType::kF32, std::vector<int64_t>{3, 40}),
                                           dense_view(keep.data(), DType::kBool, std::vector<int64_t>{30, 30})};
    const std::vector<Capture> declared = {
        {"ids", DType::kI32, {-1}}, {"bias", DType::kF32, {3, -1}}, {"keep", DType::kBool, {30, 30}}};
    const auto draw = [&](ProgramKind kind) {
      return score::random_program(random, {.kind = kind,
                                            .nodes = static_cast<int>(1 + random() % 16),
                                            .floats = kind == ProgramKind::kScoreMod,
                                            .captures = declared});
    };
    Problem problem = make_problem(random() % 2 == 0 ? std::optional(draw(ProgramKind::kScoreMod)) : std::nullopt,
                                   draw(ProgramKind::kMaskMod), 1 + static_cast<int64_t>(random() % 60),
                                   1 + static_cast<int64_t>(random() % 60));
    problem.batch = 1 + static_cast<int64_t>(random() % 2);
    problem.q_heads = 1 + static_cast<int64_t>(random() % 3);
    decided += check(problem, views, 1 + static_cast<int64_t>(random() % 20), 1 + static_cast<int64_t>(random() % 20),
                     Expect::kSound);
    ASSERT_FALSE(HasFailure()) << print(*problem.mask_mod);
  }
  EXPECT_GT(decided, 5000) << "the test has to meet decided tiles";
}

TEST(Visits, OneRowCoversAGroupOfHeads) {
  std::vector<int32_t> windows = {10, 80};
  const Captured window("window", DType::kI32, {2});
  const std::vector<TensorView> views = {dense_view(windows.data(), DType::kI32, std::vector<int64_t>{2})};
  Problem problem = make_problem(
      std::nullopt, *trace_mask_mod([&](Expr, Expr h, Expr q, Expr kv) { return (kv <= q) & (q - kv < window(h)); }),
      200, 200);
  problem.q_heads = 2;
  const Visits visits(problem, 1, 200, 200, views);
  EXPECT_TRUE(visits.depends_on_h());
  EXPECT_FALSE(visits.depends_on_b());
  VisitRow row;
  visits.row(0, 0, 2, 100, 110, 10, row);
  ASSERT_EQ(row.runs.size(), 1u);
  EXPECT_EQ(row.runs[0], (TileRun{2, 11, TileKind::kPartial}));
}

TEST(Visits, NothingMaskedMeansNothingToAsk) {
  const Problem problem =
      make_problem(*trace_score_mod([](Expr score, Expr, Expr, Expr q, Expr kv) { return score - 0.5f * abs(q - kv); }),
                   *trace_mask_mod([](Expr, Expr, Expr, Expr kv) { return kv < kv_len(); }), 100, 100);
  EXPECT_TRUE(Visits(problem, 1, 100, 100, {}).all_full());
  EXPECT_TRUE(Visits(problem, 1, 0, 0, {}).all_full());
  VisitRow row;
  Visits(problem, 1, 0, 0, {}).row(0, 0, 1, 0, 0, 16, row);
  EXPECT_TRUE(row.runs.empty());
}

}  // namespace
}  // namespace flashlift::visits
