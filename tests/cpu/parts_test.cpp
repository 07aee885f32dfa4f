// The parts of each block of keys that a task's rows need, compared with enumeration.
#include "cpu/forward_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace flashlift::cpu {
namespace {

// A call of a problem; its parts are computed, or taken from the shared ones, as run_task() does.
class Call {
 public:
  explicit Call(const std::string& text, int concurrency = 2)
      : forward_(*Forward::compile(*parse_problem(text), tile_kernels(Isa::kAvx2))),
        sizes_{problem().batch, problem().q_heads, problem().kv_heads, problem().q_len, problem().kv_len},
        partition_(sizes_, forward_.config(), concurrency),
        visits_(problem(), sizes_.batch, sizes_.q_len, sizes_.kv_len, {}),
        memory_(SharedParts::bytes(problem(), partition_) / sizeof(Part) + 1),
        shared_(reinterpret_cast<std::byte*>(memory_.data()), problem(), partition_, visits_),
        rows_(kMaxVisitGroups) {
    for (visits::VisitRow& row : rows_) {
      visits_.reserve(row, problem().kv_len);
    }
  }

  const Problem& problem() const { return forward_.problem(); }
  const Partition& partition() const { return partition_; }
  PartList* shared(int64_t task) const { return shared_.of(partition_.task(task)); }

  std::vector<Part> parts(int64_t index, PartList* shared) {
    const ForwardCall call{forward_, arguments_, sizes_, visits_, nullptr, {}, shared_};
    const Task task = partition_.task(index);
    PartFinder finder(call, task, rows_.data(), shared);
    std::vector<Part> parts;
    for (std::span<const Part> found = finder.next(); !found.empty(); found = finder.next()) {
      EXPECT_TRUE(parts.empty() || found.front().block > parts.back().block);
      EXPECT_EQ(found.front().block, found.back().block);
      parts.insert(parts.end(), found.begin(), found.end());
    }
    return parts;
  }

 private:
  Forward forward_;
  AttentionArguments arguments_;
  CallSizes sizes_;
  Partition partition_;
  visits::Visits visits_;
  std::vector<Part> memory_;
  SharedParts shared_;
  std::vector<visits::VisitRow> rows_;
};

using Mask = std::function<bool(int64_t h, int64_t q, int64_t kv)>;

// Returns the number of scores in all parts, divided by the number of kept scores.
double check(const std::string& text, const Mask& kept) {
  Call call(text);
  const int64_t kv_tile = ForwardConfig{}.kv_tile;
  double area = 0;
  double needed = 0;
  for (int64_t i = 0; i < call.partition().tasks(); ++i) {
    const Task task = call.partition().task(i);
    std::vector<int> times(static_cast<size_t>(task.rows() * call.problem().kv_len));
    for (const Part& part : call.parts(i, call.shared(i))) {
      EXPECT_EQ(part.column % 32, 0);
      EXPECT_LE(part.rows(), kRunGroups * kVisitRows);
      area += static_cast<double>(part.rows() * part.columns);
      for (int64_t row = part.row_begin; row < part.row_end; ++row) {
        for (int64_t c = part.column; c < part.column + part.columns; ++c) {
          const int64_t key = part.block * kv_tile + c;
          ++times[static_cast<size_t>(row * call.problem().kv_len + key)];
          EXPECT_TRUE(part.partial || kept(task.h_begin + row / task.q_count, task.q_begin + row % task.q_count, key));
        }
      }
    }
    for (int64_t row = 0; row < task.rows(); ++row) {
      for (int64_t key = 0; key < call.problem().kv_len; ++key) {
        const bool is_kept = kept(task.h_begin + row / task.q_count, task.q_begin + row % task.q_count, key);
        const int seen = times[static_cast<size_t>(row * call.problem().kv_len + key)];
        EXPECT_LE(seen, 1);
        EXPECT_GE(seen, is_kept ? 1 : 0) << text << ", task " << i << ", row " << row << ", key " << key;
        needed += is_kept ? 1 : 0;
      }
    }
  }
  return area / needed;
}

TEST(Parts, CoverWhatIsKeptOnceAndLittleElse) {
  EXPECT_EQ(check("attn h2 s300 d16", [](int64_t, int64_t, int64_t) { return true; }), 1);
  EXPECT_LT(check("attn h2 s1200 d16 causal", [](int64_t, int64_t q, int64_t kv) { return kv <= q; }), 1.04);
  EXPECT_LT(check("attn h3 s1024 d16 causal documents=4",
                  [](int64_t, int64_t q, int64_t kv) { return kv <= q && q / 256 == kv / 256; }),
            1.2);
  EXPECT_LT(check("attn h2 sq500 skv700 d16 window=100,3",
                  [](int64_t, int64_t q, int64_t kv) { return q - 100 <= kv && kv <= q + 3; }),
            1.5);
  // Several heads in one tile.
  check("attn hq6 hkv2 s70 d16 causal", [](int64_t, int64_t q, int64_t kv) { return kv <= q; });
  // Rows and blocks without keys.
  check("attn h2 s600 d16 mask_mod() { %0 = lt q, 100; %1 = ge kv, 300; %2 = and %0, %1; return %2 }",
        [](int64_t, int64_t q, int64_t kv) { return q < 100 && kv >= 300; });
  check("attn h2 s200 d16 mask_mod() { %0 = mul h, 90; %1 = ge kv, %0; return %1 }",
        [](int64_t h, int64_t, int64_t kv) { return kv >= 90 * h; });
}

TEST(Parts, AreFoundOnceForAllHeads) {
  Call call("attn b2 h4 s1200 d16 causal documents=4");
  const int64_t tasks = call.partition().tasks();
  ASSERT_GT(call.partition().q_tiles(), 1);
  for (int64_t i = 0; i < tasks; ++i) {
    ASSERT_NE(call.shared(i), nullptr);
    const std::vector<Part> own = call.parts(i, nullptr);
    EXPECT_TRUE(std::ranges::equal(call.parts(i, call.shared(i)), own));  // the first of the rows fills the list
    const std::span<const Part> known = call.shared(i)->ready(call.partition().task(i).rows());
    EXPECT_TRUE(std::ranges::equal(known, own));
    EXPECT_TRUE(call.shared(i)->ready(1).empty());
  }
}

TEST(Parts, AreNotSharedWhereHeadsOrBatchesDiffer) {
  EXPECT_EQ(Call("attn h2 s200 d16 mask_mod() { %0 = mul h, 90; %1 = ge kv, %0; return %1 }").shared(0), nullptr);
  EXPECT_EQ(Call("attn b2 h1 s200 d16 mask_mod() { %0 = mul b, 90; %1 = ge kv, %0; return %1 }").shared(0), nullptr);
  EXPECT_EQ(Call("attn h2 s200 d16").shared(0), nullptr);
  EXPECT_EQ(Call("attn h1 s40 d16 causal", 1).shared(0), nullptr);  // one head: no other task uses them
}

TEST(Parts, AListWithoutRoomIsNeverReady) {
  Part memory[2];
  PartList list(memory, 2);
  EXPECT_TRUE(list.claim(48));
  EXPECT_FALSE(list.claim(48));
  const std::vector<Part> parts(2, Part{.block = 0, .row_begin = 0, .row_end = 48, .columns = 128});
  list.add(parts);
  EXPECT_TRUE(list.ready(48).empty());
  list.add(parts);
  list.finish();
  EXPECT_TRUE(list.ready(48).empty());
}

}  // namespace
}  // namespace flashlift::cpu
