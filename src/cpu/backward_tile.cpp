// The backward pass over a chunk of keys and all queries that see it: which parts of which tiles are multiplied, in
// which order, and the computation on the scores between the products.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "cpu/backward_call.h"
#include "cpu/backward_products.h"
#include "cpu/dropout.h"
#include "cpu/prefetch_queue.h"
#include "cpu/trim.h"
#include "cpu/views.h"
#include "problem/sizes.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// Gaps between the rows of scores. Without them, the rows of a column would map to a few cache sets.
constexpr int64_t kRowGap = 16;

// The number of products of a tile with a block of keys. Each of them prefetches a part of the next tile.
constexpr int64_t kProducts = 5;

struct QueryTile {
  int64_t b;
  int64_t h;
  int64_t q_begin;
  int64_t rows;
  int64_t position;     // in the chunk's sequence of tiles
  bool waited = false;  // whether it has waited for its turn to add to dq
};

class ChunkRunner {
 public:
  ChunkRunner(const BackwardCall& call, int64_t chunk, const Progress& progress, const CaptureView* gradients,
              BackwardProducts& products, const ChunkLayout& layout, const WorkerMemory& memory)
      : call_(call),
        problem_(call.problem()),
        kernels_(call.kernels()),
        config_(call.kernel.config()),
        products_(products),
        layout_(layout),
        memory_(memory),
        chunk_(chunk),
        kv_begin_(products.kv_begin()),
        progress_(progress),
        gradients_(gradients) {}

  void run_pair(int64_t b, int64_t g, int64_t first_position);

 private:
  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(memory_.tiles + offset);
  }

  void run_head(int64_t b, int64_t h, int64_t first_position);
  void run_tile(int64_t b, int64_t h, int64_t tile, int64_t position, const visits::TileKind* kinds);
  int find_parts(const QueryTile& tile, const ScorePart& whole, ScorePart (&parts)[2]);
  bool trim(const QueryTile& tile, ScorePart& part);
  void run_part(QueryTile& tile, const ScorePart& part);
  void run_sole_block(QueryTile& tile, const ScorePart& whole);
  void multiply(const ScorePart& part, int64_t offset);
  ScoreArguments score_arguments(const ProgramCode* code, const ScorePart& part, float* scores, float* maxima);
  void sum_rows(const ScorePart& part, int64_t offset);
  void finish_scores(const QueryTile& tile, const ScorePart& part, int64_t offset, float scale);
  void add_products(QueryTile& tile, const ScorePart& part, int64_t offset);
  void drop_out(float* scores, const ScorePart& part);
  void wait_for_turn(int64_t position);
  void expect_tile(int64_t b, int64_t h, int64_t tile, int64_t visited);
  void add_uniform_rows(int64_t b, int64_t g);

  const BackwardCall& call_;
  const Problem& problem_;
  const TileKernels& kernels_;
  const BackwardConfig& config_;
  BackwardProducts& products_;
  const ChunkLayout& layout_;
  const WorkerMemory& memory_;
  int64_t chunk_;
  int64_t kv_begin_;
  const Progress& progress_;
  int64_t first_unfinished_ = 0;  // all chunks before this one are finished
  const CaptureView* gradients_;
};

void ChunkRunner::drop_out(float* scores, const ScorePart& part) {
  for (int64_t r = 0; call_.dropout.is_active() && r < part.rows; ++r) {
    const RowCoordinates& row = at<RowCoordinates>(layout_.coordinates)[part.row + r];
    kernels_.drop_out(scores + r * layout_.s_stride, part.columns, call_.dropout, {row.b, row.h, row.q},
                      kv_begin_ + part.key);
  }
}

ScoreArguments ChunkRunner::score_arguments(const ProgramCode* code, const ScorePart& part, float* scores,
                                            float* maxima) {
  return {.s = scores,
          .s_stride = layout_.s_stride,
          .rows = part.rows,
          .kv_begin = kv_begin_ + part.key,
          .columns = part.columns,
          .coordinates = at<RowCoordinates>(layout_.coordinates) + part.row,
          .captures = call_.captures,
          .maxima = maxima,
          .q_len = static_cast<int32_t>(call_.sizes.q_len),
          .kv_len = static_cast<int32_t>(call_.sizes.kv_len),
          .scale = problem_.scale,
          .code = code};
}

// Adds a part's scores to the sums of its rows. Without programs, the products in s are left unscaled.
void ChunkRunner::sum_rows(const ScorePart& part, int64_t offset) {
  float* s = at<float>(layout_.s) + offset;
  float* scores = s;
  float* maxima = at<float>(layout_.maxima);
  const ScoreFunction function =
      function_for_tile(call_.kernel.forward().score(), problem_, part.partial, part.columns % kernels_.lanes == 0);
  if (function == nullptr) {
    kernels_.row_max(s, layout_.s_stride, part.rows, part.columns, problem_.scale, maxima);
  } else {
    scores = at<float>(layout_.scores);
    for (int64_t r = 0; r < part.rows; ++r) {
      std::copy_n(s + r * layout_.s_stride, part.columns, scores + r * layout_.s_stride);
    }
    const ScoreArguments arguments = score_arguments(call_.kernel.forward().score(), part, scores, maxima);
    function(&arguments);
  }
  float* sums = at<float>(layout_.part_sums);
  float* weighted = at<float>(layout_.weighted);
  kernels_.sum_rows(scores, at<float>(layout_.ds) + offset, layout_.s_stride, part.rows,
                    round_up(part.columns, kernels_.lanes), maxima, sums, weighted);
  for (int64_t r = 0; r < part.rows; ++r) {
    at<RowSums>(layout_.sums)[part.row + r].add({.max = maxima[r], .sum = sums[r], .weighted = weighted[r]});
  }
}

// Replaces s by p, and ds by the gradient of the products times problem_.scale.
void ChunkRunner::finish_scores(const QueryTile& tile, const ScorePart& part, int64_t offset, float scale) {
  float* s = at<float>(layout_.s) + offset;
  float* ds = at<float>(layout_.ds) + offset;
  const RowGradient* states = call_.rows + call_.row_index(tile.b, tile.h, tile.q_begin + part.row);
  const GradientFunction function =
      function_for_tile(call_.kernel.gradient(), problem_, part.partial, part.columns % kernels_.lanes == 0);
  if (function == nullptr) {
    kernels_.score_gradients(s, ds, layout_.s_stride, part.rows, part.columns, scale, states);
    return;
  }
  const GradientArguments arguments{.scores = score_arguments(call_.kernel.gradient(), part, s, nullptr),
                                    .ds = ds,
                                    .rows = states,
                                    .gradients = gradients_};
  function(&arguments);
}

// Earlier chunks must add to a query tile first. They were all started before this one, so that a waiting thread always
// waits for a running one.
void ChunkRunner::wait_for_turn(int64_t position) {
  for (int64_t i = first_unfinished_; i < chunk_; ++i) {
    const std::atomic<int64_t>& other = progress_.chunks[i * progress_.stride];
    int64_t done = other.load(std::memory_order_acquire);
    while (done <= position) {
      other.wait(done, std::memory_order_acquire);
      done = other.load(std::memory_order_acquire);
    }
    if (done == Progress::kDone && i == first_unfinished_) {
      ++first_unfinished_;
    }
  }
}

// Makes the products of a tile with `visited` blocks prefetch the next tile of queries, if there is one.
void ChunkRunner::expect_tile(int64_t b, int64_t h, int64_t tile, int64_t visited) {
  const int64_t q_begin = tile * config_.q_tile;
  const int64_t rows = std::min(call_.sizes.q_len - q_begin, config_.q_tile);
  products_.prefetches = {};
  if (rows <= 0) {
    return;
  }
  push(products_.prefetches, head_rows(call_.forward().q, b, h, q_begin), rows, problem_.head_dim);
  push(products_.prefetches, head_rows(call_.arguments.d_out, b, h, q_begin), rows, problem_.value_dim);
  if (call_.dq != nullptr) {
    const float* dq = call_.dq + call_.row_index(b, h, q_begin) * call_.d_stride;
    push(products_.prefetches, {dq, DType::kF32, call_.d_stride, 1}, rows, call_.d_stride);
  }
  set_rate(products_.prefetches, kProducts * visited * prefetch_steps(rows, config_.kv_tile));
}

void ChunkRunner::run_tile(int64_t b, int64_t h, int64_t tile, int64_t position, const visits::TileKind* kinds) {
  const int64_t q_begin = tile * config_.q_tile;
  const int64_t rows = std::min(config_.q_tile, call_.sizes.q_len - q_begin);
  const int32_t sole = call_.sole_block(b, h, q_begin);
  const bool has_sole = sole != BackwardCall::kNoBlock;
  const auto is_visited = [&](int64_t block) {
    return kinds[block] != visits::TileKind::kSkipped && (!has_sole || kv_begin_ / config_.kv_tile + block == sole);
  };
  int64_t visited = 0;
  for (int64_t block = 0; block < products_.blocks(); ++block) {
    visited += is_visited(block) ? 1 : 0;
  }
  if (visited == 0) {
    return;
  }
  QueryTile queries{.b = b, .h = h, .q_begin = q_begin, .rows = rows, .position = position};
  products_.load(b, h, q_begin, rows);
  for (int64_t r = 0; r < rows; ++r) {
    at<RowCoordinates>(layout_.coordinates)[r] = {static_cast<int32_t>(b), static_cast<int32_t>(h),
                                                  static_cast<int32_t>(q_begin + r)};
  }
  expect_tile(b, h, tile + 1, visited);
  for (int64_t block = 0; block < products_.blocks(); ++block) {
    if (!is_visited(block)) {
      continue;
    }
    const ScorePart whole{.row = 0,
                          .rows = rows,
                          .key = block * config_.kv_tile,
                          .columns = products_.columns_of(block),
                          .partial = kinds[block] == visits::TileKind::kPartial};
    if (has_sole) {
      run_sole_block(queries, whole);
      continue;
    }
    ScorePart parts[2] = {whole};
    const int count = whole.partial ? find_parts(queries, whole, parts) : 1;
    for (int i = 0; i < count; ++i) {
      run_part(queries, parts[i]);
    }
  }
}

// Splits a partial tile in halves and trims each: on a causal diagonal, this leaves less than half of the tile. Returns
// the number of parts.
int ChunkRunner::find_parts(const QueryTile& tile, const ScorePart& whole, ScorePart (&parts)[2]) {
  const int64_t half = config_.kv_tile / 2;
  static_assert(BackwardConfig{}.kv_tile / 2 % 64 == 0, "whole panels, and whole counters of dropout");
  ScorePart first = whole;
  first.columns = std::min(whole.columns, half);
  ScorePart second = whole;
  second.key += half;
  second.columns = whole.columns - first.columns;
  const bool needs_first = trim(tile, first);
  const bool needs_second = second.columns > 0 && trim(tile, second);
  if (needs_first && needs_second && first.rows == second.rows && first.row == second.row) {
    first.columns = whole.columns;
    parts[0] = first;
    return 1;
  }
  int count = 0;
  if (needs_first) {
    parts[count++] = first;
  }
  if (needs_second) {
    parts[count++] = second;
  }
  return count;
}

// Removes the first and last rows that keep none of the part's keys. Returns false if no row is left.
bool ChunkRunner::trim(const QueryTile& tile, ScorePart& part) {
  std::vector<score::Interval>& scratch = memory_.visits[0].scratch;
  const RowRange rows = trim_rows({0, tile.rows}, [&](int64_t begin, int64_t end) {
    const visits::TileBox box{.b = tile.b,
                              .h_begin = tile.h,
                              .h_end = tile.h + 1,
                              .q_begin = tile.q_begin + begin,
                              .q_end = tile.q_begin + end,
                              .kv_begin = kv_begin_ + part.key,
                              .kv_end = kv_begin_ + part.key + part.columns};
    return call_.visits.classify(box, scratch) == visits::TileKind::kSkipped;
  });
  part.row = rows.begin;
  part.rows = rows.end - rows.begin;
  return part.rows > 0;
}

// Computes <q, k> and <d_out, v> into s and ds, starting at element `offset`.
void ChunkRunner::multiply(const ScorePart& part, int64_t offset) {
  products_.multiply(part, at<float>(layout_.s) + offset, at<float>(layout_.ds) + offset);
}

// Adds the products of the probabilities and gradients in s and ds, starting at element `offset`, to d_v, d_k and dq.
void ChunkRunner::add_products(QueryTile& tile, const ScorePart& part, int64_t offset) {
  const float* p = at<float>(layout_.s) + offset;
  const float* ds = at<float>(layout_.ds) + offset;
  if (call_.arguments.d_v) {
    products_.add_to_values(part, p);
  }
  if (call_.arguments.d_k) {
    products_.add_to_keys(part, ds);
  }
  if (call_.dq != nullptr) {
    if (!tile.waited) {
      wait_for_turn(tile.position);
      tile.waited = true;
    }
    products_.add_to_queries(part, ds, call_.dq + call_.row_index(tile.b, tile.h, tile.q_begin) * call_.d_stride);
  }
}

void ChunkRunner::run_part(QueryTile& tile, const ScorePart& part) {
  multiply(part, 0);
  // A dropped key has p = 0 in the product with v, but its score still has a gradient through the row sum. d_out
  // already contains the factor of kept keys.
  drop_out(at<float>(layout_.ds), part);
  finish_scores(tile, part, 0, problem_.scale);
  drop_out(at<float>(layout_.s), part);
  add_products(tile, part, 0);
}

// Like run_part(), for a tile with all keys of its rows, whose softmax is computed here.
void ChunkRunner::run_sole_block(QueryTile& tile, const ScorePart& whole) {
  ScorePart parts[2] = {whole};
  const int count = whole.partial ? find_parts(tile, whole, parts) : 1;
  if (count == 0) {
    return;
  }
  const auto offset = [&](const ScorePart& part) { return part.row * layout_.s_stride + part.key - whole.key; };
  std::fill_n(at<RowSums>(layout_.sums), tile.rows, RowSums{});
  for (int i = 0; i < count; ++i) {
    multiply(parts[i], offset(parts[i]));
    drop_out(at<float>(layout_.ds) + offset(parts[i]), parts[i]);
    sum_rows(parts[i], offset(parts[i]));
  }
  RowGradient* states = call_.rows + call_.row_index(tile.b, tile.h, tile.q_begin);
  for (int64_t r = 0; r < tile.rows; ++r) {
    states[r] = row_gradient(call_, tile.b, tile.h, tile.q_begin + r, at<RowSums>(layout_.sums)[r]);
  }
  for (int i = 0; i < count; ++i) {
    finish_scores(tile, parts[i], offset(parts[i]), 1.0f);
    drop_out(at<float>(layout_.s) + offset(parts[i]), parts[i]);
    add_products(tile, parts[i], offset(parts[i]));
  }
}

// Visits query tiles in ascending order, each with all blocks of the chunk that it sees.
void ChunkRunner::run_head(int64_t b, int64_t h, int64_t first_position) {
  const std::span<visits::VisitRow> visits = memory_.visits;
  size_t next[kMaxBlocks] = {};
  for (int64_t block = 0; block < products_.blocks(); ++block) {
    const int64_t first = kv_begin_ + block * config_.kv_tile;
    call_.visits.column(b, h, h + 1, first, first + products_.columns_of(block), config_.q_tile, visits[block]);
  }
  const int64_t tiles = divide_up(call_.sizes.q_len, config_.q_tile);
  for (int64_t tile = 0; tile < tiles;) {
    visits::TileKind kinds[kMaxBlocks];
    int64_t prefetches = tiles;  // the next tile that some block visits
    for (int64_t block = 0; block < products_.blocks(); ++block) {
      const std::vector<visits::TileRun>& runs = visits[block].runs;
      while (next[block] < runs.size() && runs[next[block]].end <= tile) {
        ++next[block];
      }
      const bool any = next[block] < runs.size();
      const bool visited = any && runs[next[block]].begin <= tile;
      kinds[block] = visited ? runs[next[block]].kind : visits::TileKind::kSkipped;
      prefetches = any ? std::min(prefetches, std::max(runs[next[block]].begin, tile)) : prefetches;
    }
    std::atomic<int64_t>& own = progress_.chunks[chunk_ * progress_.stride];
    own.store(first_position + prefetches, std::memory_order_release);
    own.notify_all();
    if (prefetches == tile) {
      run_tile(b, h, tile, first_position + tile, kinds);
      prefetches = tile + 1;
    }
    tile = prefetches;
  }
}

// A row without keys whose output is the mean of all values passes its gradient on to each value. Without dropout, all
// such rows pass it on to all values, so that their sum is added once.
void ChunkRunner::add_uniform_rows(int64_t b, int64_t g) {
  float* row = at<float>(layout_.row);
  const float factor = call_.dropout.factor / static_cast<float>(call_.sizes.kv_len);
  std::array<double, problem::kMostDepth> sums{};
  bool is_any = false;
  for (int64_t h = g * call_.sizes.group(); h < (g + 1) * call_.sizes.group(); ++h) {
    for (int64_t q = 0; q < call_.sizes.q_len; ++q) {
      if (call_.rows[call_.row_index(b, h, q)].empty == 0) {
        continue;
      }
      is_any = true;
      kernels_.convert_rows(head_rows(call_.arguments.d_out, b, h, q), 1, problem_.value_dim, factor, row,
                            call_.v_stride);
      if (!call_.dropout.is_active()) {
        std::transform(row, row + problem_.value_dim, sums.begin(), sums.begin(), std::plus<>());
        continue;
      }
      for (int64_t j = 0; j < products_.keys(); ++j) {
        if (keeps(call_.dropout, {b, h, q}, kv_begin_ + j)) {
          products_.add_row_to_value(j, row);
        }
      }
    }
  }
  if (!is_any || call_.dropout.is_active()) {
    return;
  }
  std::transform(sums.begin(), sums.begin() + problem_.value_dim, row, [](double x) { return static_cast<float>(x); });
  for (int64_t j = 0; j < products_.keys(); ++j) {
    products_.add_row_to_value(j, row);
  }
}

void ChunkRunner::run_pair(int64_t b, int64_t g, int64_t first_position) {
  products_.begin(b, g);
  const int64_t tiles = divide_up(call_.sizes.q_len, config_.q_tile);
  for (int64_t i = 0; i < call_.sizes.group(); ++i) {
    run_head(b, g * call_.sizes.group() + i, first_position + i * tiles);
  }
  if (problem_.empty_rows == EmptyRows::kUniform) {
    add_uniform_rows(b, g);
  }
  products_.store(b, g);
}

}  // namespace

ChunkLayout::ChunkLayout(const Backward& kernel, const CallSizes& sizes, int64_t kv_chunk) {
  const BackwardConfig& config = kernel.config();
  const int64_t head_dim = kernel.forward().problem().head_dim;
  const int64_t value_dim = kernel.forward().problem().value_dim;
  const int64_t rows = std::min(config.q_tile, sizes.q_len);
  const PairKernels* pairs = product_pairs(kernel, sizes);
  const bool splits_d_out = kernel.forward().problem().d_out_dtype() != DType::kBF16;
  const int64_t multiple = pairs == nullptr ? 1 : pairs->depth_multiple;
  const size_t element = pairs == nullptr ? sizeof(float) : sizeof(Bf16);
  // Padding of the depth.
  const int64_t q_width = round_up(head_dim, multiple);
  const int64_t v_width = round_up(value_dim, multiple);
  const int64_t chunk = round_up(kv_chunk, multiple);
  LayoutCounter counter;
  s_stride = config.kv_tile + kRowGap;
  keys_stride = round_up(kv_chunk, int64_t{kernel.forward().kernels().lanes}) + kRowGap;
  rows_stride = round_up(rows, multiple) + multiple;  // a part may start at any row
  kt = counter.take(kv_chunk * q_width, element);
  k = counter.take(chunk * kernel.d_stride(), element);
  vt = counter.take(kv_chunk * v_width, element);
  q = counter.take(pairs == nullptr ? rows * kernel.d_stride() : head_dim * rows_stride, element);
  q_rows = counter.take(rows * q_width, element);
  d_out = counter.take(pairs == nullptr ? rows * kernel.v_stride() : value_dim * rows_stride, element);
  d_out_rows = counter.take(rows * v_width, element);
  d_out_low = counter.take(pairs == nullptr || !splits_d_out ? 0 : value_dim * rows_stride, element);
  d_out_low_rows = counter.take(pairs == nullptr || !splits_d_out ? 0 : rows * v_width, element);
  columns = counter.take(pairs == nullptr ? 0 : round_up(rows, multiple) * round_up(config.kv_tile, multiple), element);
  s = counter.take(rows * s_stride, sizeof(float));
  ds = counter.take(rows * s_stride, sizeof(float));
  scores = counter.take(kernel.forward().score() == nullptr ? 0 : rows * s_stride, sizeof(float));
  maxima = counter.take(rows, sizeof(float));
  sums = counter.take(rows, sizeof(RowSums));
  part_sums = counter.take(rows, sizeof(float));
  weighted = counter.take(rows, sizeof(float));
  const int64_t d_width = std::max(kernel.d_stride(), kernel.v_stride());
  dk = counter.take(pairs == nullptr ? kv_chunk * kernel.d_stride() : head_dim * keys_stride, sizeof(float));
  dv = counter.take(pairs == nullptr ? kv_chunk * kernel.v_stride() : value_dim * keys_stride, sizeof(float));
  stored = counter.take(pairs == nullptr ? 0 : kernel.forward().kernels().lanes * d_width, sizeof(float));
  row = counter.take(std::max(d_width, v_width), sizeof(float));
  coordinates = counter.take(rows, sizeof(RowCoordinates));
  bytes = counter.bytes();
}

namespace {

void run_chunk(const BackwardCall& call, int64_t chunk, int64_t pair_begin, int64_t pair_end, const Progress& progress,
               const CaptureView* gradients, BackwardProducts& products, const ChunkLayout& layout,
               const WorkerMemory& memory) {
  ChunkRunner runner(call, chunk, progress, gradients, products, layout, memory);
  const int64_t positions = call.sizes.group() * divide_up(call.sizes.q_len, call.kernel.config().q_tile);
  for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
    runner.run_pair(pair / call.sizes.kv_heads, pair % call.sizes.kv_heads, (pair - pair_begin) * positions);
  }
}

}  // namespace

void run_chunk(const BackwardCall& call, int64_t chunk, int64_t pair_begin, int64_t pair_end, const Progress& progress,
               const CaptureView* gradients, const ChunkLayout& layout, const WorkerMemory& memory) {
  const PairKernels* pairs = product_pairs(call.kernel, call.sizes);
  if (pairs == nullptr) {
    F32Products products(call, chunk, layout, memory);
    run_chunk(call, chunk, pair_begin, pair_end, progress, gradients, products, layout, memory);
    return;
  }
  const PairSection section(pairs);
  PairProducts products(call, chunk, layout, memory);
  run_chunk(call, chunk, pair_begin, pair_end, progress, gradients, products, layout, memory);
}

}  // namespace flashlift::cpu
