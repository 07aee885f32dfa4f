// Masks from given block lists: the visited tiles are exactly those of the lists.
#include "flashlift/block_mask.h"

#include <gtest/gtest.h>

#include <limits>

#include "flashlift/builder.h"
#include "score/interpret.h"
#include "visits/visits.h"

namespace flashlift {
namespace {

// Causal over 4 x 4 blocks of 16, as create_block_mask makes it, for 1 batch and 1 head.
struct CausalLists {
  std::vector<int32_t> counts = {1, 1, 1, 1};
  std::vector<int32_t> indices = std::vector<int32_t>(16, 0);
  std::vector<int32_t> full_counts = {0, 1, 2, 3};
  std::vector<int32_t> full_indices = std::vector<int32_t>(16, 0);
  BlockLists lists;

  CausalLists() {
    for (int i = 0; i < 4; ++i) {
      indices[i * 4] = i;
      for (int j = 0; j < i; ++j) {
        full_indices[i * 4 + j] = j;
      }
    }
    const std::vector<int64_t> rows = {1, 1, 4};
    const std::vector<int64_t> blocks = {1, 1, 4, 4};
    lists.q_block = lists.kv_block = 16;
    lists.kv_num_blocks = dense_view(counts.data(), DType::kI32, rows);
    lists.kv_indices = dense_view(indices.data(), DType::kI32, blocks);
    lists.full_kv_num_blocks = dense_view(full_counts.data(), DType::kI32, rows);
    lists.full_kv_indices = dense_view(full_indices.data(), DType::kI32, blocks);
  }
};

Problem problem_of(const char* text) {
  const auto problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return *problem;
}

TEST(BlockMask, GivesTheTilesAndTheMaskThatItWasMadeFrom) {
  const CausalLists causal;
  Result<BlockKinds> kinds = block_kinds(causal.lists);
  ASSERT_TRUE(kinds.ok()) << kinds.error().message;
  Problem problem = problem_of("attn b2 h3 s60 d8 causal");
  const Status status = restrict_to_blocks(*kinds, problem);
  ASSERT_TRUE(status.ok()) << status.error().message;
  ASSERT_TRUE(verify(problem).ok());
  ASSERT_EQ(problem.captures.size(), 1u);

  const std::vector<TensorView> captures = {kinds->view()};
  score::Interpreter mask(*problem.mask_mod, captures);
  for (int32_t q = 0; q < 60; ++q) {
    for (int32_t kv = 0; kv < 60; ++kv) {
      ASSERT_EQ(mask.mask_mod({.b = 1, .h = 2, .q = q, .kv = kv, .q_len = 60, .kv_len = 60}), kv <= q);
    }
  }
  const visits::Visits visits(problem, 2, 60, 60, captures);
  visits::VisitRow row;
  visits.row(1, 0, 3, 32, 48, 16, row);
  ASSERT_EQ(row.runs.size(), 2u);
  EXPECT_EQ(row.runs[0], (visits::TileRun{0, 2, visits::TileKind::kFull}));
  EXPECT_EQ(row.runs[1], (visits::TileRun{2, 3, visits::TileKind::kPartial}));
}

TEST(BlockMask, FullBlocksDoNotRunMaskMod) {
  const CausalLists causal;
  const BlockKinds kinds = *block_kinds(causal.lists);
  Problem problem = problem_of("attn h1 s64 d8");
  problem.mask_mod = *trace_mask_mod([](Expr, Expr, Expr, Expr) { return Expr(false); });
  ASSERT_TRUE(restrict_to_blocks(kinds, problem).ok());
  BlockKinds owned = kinds;
  const std::vector<TensorView> captures = {owned.view()};
  const visits::Visits visits(problem, 1, 64, 64, captures);
  visits::VisitRow row;
  visits.row(0, 0, 1, 32, 48, 16, row);
  ASSERT_EQ(row.runs.size(), 1u);
  EXPECT_EQ(row.runs[0], (visits::TileRun{0, 2, visits::TileKind::kFull}));
}

TEST(BlockMask, RefusesMalformedLists) {
  const auto message = [](const CausalLists& causal) {
    const auto kinds = block_kinds(causal.lists);
    EXPECT_FALSE(kinds.ok());
    return kinds.ok() ? std::string() : kinds.error().message;
  };
  {
    CausalLists wrong;
    wrong.counts[2] = 5;
    EXPECT_NE(message(wrong).find("lists 5 blocks, expected 0 to 4"), std::string::npos);
  }
  {
    CausalLists wrong;
    wrong.indices[4] = -1;
    EXPECT_NE(message(wrong).find("lists block -1, expected 0 to 3"), std::string::npos);
  }
  {
    CausalLists wrong;
    wrong.lists.kv_num_blocks.sizes[2] = 3;
    EXPECT_NE(message(wrong).find("expected i32[1,1,4]"), std::string::npos);
  }
  {
    CausalLists wrong;
    wrong.lists.full_kv_indices.reset();
    EXPECT_NE(message(wrong).find("come together"), std::string::npos);
  }
  {
    CausalLists wrong;
    wrong.lists.q_block = 0;
    message(wrong);
  }
  {
    CausalLists wrong;
    wrong.lists.kv_indices.sizes[3] = -4;
    EXPECT_NE(message(wrong).find("sizes are 0 or more"), std::string::npos);
  }
  {
    CausalLists wrong;
    wrong.lists.kv_indices.strides[3] = int64_t{1} << 61;
    EXPECT_NE(message(wrong).find("64 bits"), std::string::npos);
  }
  {
    CausalLists wrong;
    wrong.lists.kv_num_blocks.data = static_cast<char*>(wrong.lists.kv_num_blocks.data) + 2;
    EXPECT_NE(message(wrong).find("multiple of the 4 bytes"), std::string::npos);
  }
}

TEST(BlockMask, RefusesProblemsThatItDoesNotFit) {
  const CausalLists causal;
  const BlockKinds kinds = *block_kinds(causal.lists);
  Problem longer = problem_of("attn h1 s65 d8");
  const Status status = restrict_to_blocks(kinds, longer);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("got [1,1,4,4]"), std::string::npos);
  Problem twice = problem_of("attn h1 s64 d8");
  ASSERT_TRUE(restrict_to_blocks(kinds, twice).ok());
  EXPECT_FALSE(restrict_to_blocks(kinds, twice).ok());
  EXPECT_TRUE(restrict_to_blocks(kinds, twice, "more_blocks").ok());
}

TEST(BlockMask, RefusesKindsThatAreNone) {
  Problem problem = problem_of("attn h1 s64 d8");
  const auto message = [&](const BlockKinds& kinds) {
    const Status status = restrict_to_blocks(kinds, problem);
    return status.ok() ? std::string() : status.error().message;
  };
  BlockKinds kinds{.q_block = 0, .kv_block = 16, .shape = {1, 1, 4, 4}, .kinds = std::vector<uint8_t>(16, 2)};
  EXPECT_NE(message(kinds).find("at least one query and one key, got 0 and 16"), std::string::npos);
  kinds.q_block = 16;
  kinds.kinds.resize(15);
  EXPECT_NE(message(kinds).find("have 15 bytes"), std::string::npos);
  // A block longer than any sequence: there is one block.
  kinds = {.q_block = std::numeric_limits<int64_t>::max(),
           .kv_block = std::numeric_limits<int64_t>::max(),
           .shape = {1, 1, 1, 1},
           .kinds = {2}};
  EXPECT_EQ(message(kinds), "");
}

std::vector<uint8_t> kinds_of(const char* text, const std::vector<TensorView>& captures, int64_t q_block,
                              int64_t kv_block, bool by_batch = false, bool by_head = false) {
  const auto found = block_kinds(problem_of(text), captures, q_block, kv_block, by_batch, by_head);
  EXPECT_TRUE(found.ok()) << found.error().message;
  return found.ok() ? found->kinds : std::vector<uint8_t>();
}

TEST(BlockMask, FindsTheKindsOfAProgramsBlocks) {
  using Kinds = std::vector<uint8_t>;
  EXPECT_EQ(kinds_of("attn h1 s60 d8 causal", {}, 16, 16), (Kinds{1, 0, 0, 0, 2, 1, 0, 0, 2, 2, 1, 0, 2, 2, 2, 1}));
  EXPECT_EQ(kinds_of("attn h1 s60 d8", {}, 64, 32), (Kinds{2, 2}));
  EXPECT_EQ(kinds_of("attn h1 s60 d8 causal", {}, int64_t{1} << 62, int64_t{1} << 62), (Kinds{1}));
  EXPECT_EQ(kinds_of("attn b0 h1 s60 d8 causal", {}, 32, 32), (Kinds{0, 0, 0, 0}));
  EXPECT_EQ(kinds_of("attn b0 h1 s60 d8 causal", {}, 32, 32, true), (Kinds{}));
  // The mask differs between batches: for all batches together, the result states only what holds for each.
  const char* lengths = "attn b2 h2 s32 d8 key_lengths";
  std::vector<int32_t> data = {16, 32};
  const std::vector<int64_t> shape = {2};
  const std::vector<TensorView> captures = {dense_view(data.data(), DType::kI32, shape)};
  EXPECT_EQ(kinds_of(lengths, captures, 32, 16, true), (Kinds{2, 0, 2, 2}));
  EXPECT_EQ(kinds_of(lengths, captures, 32, 16), (Kinds{2, 1}));
  EXPECT_EQ(kinds_of(lengths, captures, 32, 16, true, true), (Kinds{2, 0, 2, 0, 2, 2, 2, 2}));
}

TEST(BlockMask, RefusesBlocksOfNothing) {
  EXPECT_FALSE(block_kinds(problem_of("attn h1 s60 d8"), {}, 0, 16, false, false).ok());
  EXPECT_FALSE(block_kinds(problem_of("attn h1 s60 d8"), {}, 16, -1, false, false).ok());
  // 2^64 blocks
  const auto many = block_kinds(problem_of("attn b1073741824 h1 sq1073741824 skv16 d8 causal"), {}, 1, 1, true, true);
  ASSERT_FALSE(many.ok());
  EXPECT_NE(many.error().message.find("1073741824 by 16 blocks of 1073741824 batches"), std::string::npos)
      << many.error().message;
  EXPECT_FALSE(block_kinds(problem_of("attn h1 s60 d8 key_lengths"), {}, 16, 16, false, false).ok());
}

}  // namespace
}  // namespace flashlift
