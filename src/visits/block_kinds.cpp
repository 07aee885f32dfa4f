#include <algorithm>
#include <new>
#include <vector>

#include "flashlift/block_mask.h"
#include "problem/block_mask.h"
#include "support/error.h"
#include "support/rounding.h"
#include "visits/visits.h"

namespace flashlift {
namespace {

constexpr uint8_t kPartial = 1;
constexpr uint8_t kFull = 2;
constexpr uint8_t kUnknown = 3;  // for batches and heads that were not read yet

// False if there is no memory: the number of blocks of long sequences may exceed 64 bits.
bool assign(const std::vector<int64_t>& shape, uint8_t kind, std::vector<uint8_t>& kinds) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) {
      return false;
    }
  }
  try {
    kinds.assign(static_cast<size_t>(count), kind);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void merge(uint8_t kind, uint8_t& merged) { merged = merged == kUnknown || merged == kind ? kind : kPartial; }

}  // namespace

Result<BlockKinds> block_kinds(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_block,
                               int64_t kv_block, bool by_batch, bool by_head) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_blocks(q_block, kv_block));
  FLASHLIFT_RETURN_IF_ERROR(verify_captures(problem, captures));
  // Blocks longer than the sequences are equivalent to blocks of their length, whose positions do not overflow.
  q_block = std::min(q_block, std::max<int64_t>(problem.q_len, 1));
  kv_block = std::min(kv_block, std::max<int64_t>(problem.kv_len, 1));
  const int64_t rows = divide_up(problem.q_len, q_block);
  const int64_t columns = divide_up(problem.kv_len, kv_block);
  const visits::Visits visits(problem, problem.batch, problem.q_len, problem.kv_len, captures);
  BlockKinds result{.q_block = q_block,
                    .kv_block = kv_block,
                    .shape = {by_batch ? problem.batch : 1, by_head ? problem.q_heads : 1, rows, columns},
                    .kinds = {}};
  if (!assign(result.shape, problem.batch == 0 ? uint8_t{0} : kUnknown, result.kinds)) {
    return internal_error("there is no memory for the kinds of {} by {} blocks of {} batches and {} heads", rows,
                          columns, result.shape[0], result.shape[1]);
  }
  const int64_t plane = rows * columns;
  std::vector<uint8_t> kinds(columns);
  visits::VisitRow row;
  const int64_t batches = by_batch || visits.depends_on_b() ? problem.batch : std::min<int64_t>(problem.batch, 1);
  const int64_t heads = by_head || visits.depends_on_h() ? problem.q_heads : 1;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      uint8_t* merged = result.kinds.data() + ((by_batch ? b : 0) * result.shape[1] + (by_head ? h : 0)) * plane;
      for (int64_t q = 0; q < problem.q_len; q += q_block, merged += columns) {
        std::fill(kinds.begin(), kinds.end(), uint8_t{0});
        visits.row(b, h, h + 1, q, std::min(q + q_block, problem.q_len), kv_block, row);
        for (const visits::TileRun& run : row.runs) {
          std::fill(kinds.begin() + run.begin, kinds.begin() + run.end,
                    run.kind == visits::TileKind::kFull ? kFull : kPartial);
        }
        for (int64_t kv = 0; kv < columns; ++kv) {
          merge(kinds[kv], merged[kv]);
        }
      }
    }
  }
  return result;
}

}  // namespace flashlift
