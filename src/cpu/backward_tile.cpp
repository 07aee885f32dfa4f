// The backward pass's five products, a chunk of keys at a time against all queries that see it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/backward_call.h"
#include "cpu/dropout.h"
#include "cpu/forward_tile.h"
#include "cpu/trim.h"
#include "cpu/upcoming.h"
#include "cpu/views.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// Gaps between the rows of the scores: without them, rows read down a column would share a few cache sets.
constexpr int64_t kRowGap = 16;

// Products of a tile with a block of keys, each of which brings some of the next tile near.
constexpr int64_t kProducts = 5;

// A tile of q or d_out: as the second operand of a product, in panels, and as its first, rows of `stride` floats.
struct Operand {
  const float* panels;
  const float* rows;
  int64_t stride;
  bool finite = true;
};

struct QueryTile {
  int64_t b;
  int64_t h;
  int64_t q_begin;
  int64_t rows;
  int64_t position;  // in the chunk's sequence
  Operand q;
  Operand d_out;
  bool waited = false;  // for its turn to add to dq
};

// Part of a tile's scores: rows of the tile, and keys of the chunk from a whole panel on.
struct Part {
  int64_t row;
  int64_t rows;
  int64_t key;
  int64_t columns;
  bool partial;
};

class ChunkRunner {
 public:
  ChunkRunner(const BackwardCall& call, int64_t chunk, const Progress& progress, const CaptureView* gradients,
              const ChunkLayout& layout, const WorkerMemory& memory)
      : call_(call),
        problem_(call.problem()),
        kernels_(call.kernels()),
        config_(call.kernel.config()),
        layout_(layout),
        memory_(memory),
        chunk_(chunk),
        kv_begin_(chunk * call.kv_chunk),
        keys_(std::min(call.kv_chunk, call.sizes.kv_len - kv_begin_)),
        blocks_(divide_up(std::max<int64_t>(keys_, 0), config_.kv_tile)),
        progress_(progress),
        gradients_(gradients),
        d_panel_count_(value_panels(problem_.head_dim, kernels_, d_panels_)),
        v_panel_count_(value_panels(problem_.value_dim, kernels_, v_panels_)) {}

  void run_pair(int64_t b, int64_t g, int64_t first_position);

 private:
  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(memory_.tiles + offset);
  }
  int64_t columns_of(int64_t block) const { return std::min(config_.kv_tile, keys_ - block * config_.kv_tile); }

  void pack_keys(int64_t b, int64_t g);
  void pack_transposed(const TensorView& tensor, int64_t b, int64_t g, int64_t row, int64_t rows, int64_t depth,
                       float* to);
  bool pack_panels(const MatrixView& from, int64_t rows, int64_t width, const Panel* panels, int panel_count,
                   float scale, float* to);
  Operand load(const TensorView& tensor, int64_t b, int64_t h, int64_t q_begin, int64_t rows, int64_t width,
               const Panel* panels, int panel_count, float scale, size_t panels_at, size_t rows_at);
  void run_head(int64_t b, int64_t h, int64_t first_position);
  void run_tile(int64_t b, int64_t h, int64_t tile, int64_t position, const plan::TileKind* kinds);
  int find_parts(const QueryTile& tile, const Part& whole, Part (&parts)[2]);
  bool trim(const QueryTile& tile, Part& part);
  void run_part(QueryTile& tile, const Part& part);
  void run_sole_block(QueryTile& tile, const Part& whole);
  void multiply(const QueryTile& tile, const Part& part, int64_t offset);
  void multiply_keys(const Operand& a, const Part& part, int64_t depth, const float* panels, float* c);
  ScoreArguments score_arguments(const Part& part, float* scores, float* maxima);
  void sum_rows(const Part& part, int64_t offset);
  void finish_scores(const QueryTile& tile, const Part& part, int64_t offset, float scale);
  void add_products(QueryTile& tile, const Part& part, int64_t offset);
  void drop_out(float* scores, const Part& part);
  void add_to_keys(const float* coefficients, int64_t tile_rows, const Part& part, const Operand& b,
                   const Panel* panels, int panel_count, float* c, int64_t c_stride);
  void add_to_queries(const float* ds, const Part& part, float* dq);
  void wait_for_turn(int64_t position);
  void expect_tile(int64_t b, int64_t h, int64_t tile, int64_t visited);
  void add_uniform_rows(int64_t b, int64_t g);
  void store(const std::optional<TensorView>& gradient, int64_t b, int64_t g, const float* from, int64_t stride,
             int64_t width, float factor);

  const BackwardCall& call_;
  const Problem& problem_;
  const TileKernels& kernels_;
  const BackwardConfig& config_;
  const ChunkLayout& layout_;
  const WorkerMemory& memory_;
  int64_t chunk_;
  int64_t kv_begin_;
  int64_t keys_;
  int64_t blocks_;
  const Progress& progress_;
  int64_t first_unfinished_ = 0;  // of the chunks before this one
  const CaptureView* gradients_;
  Panel d_panels_[32];
  Panel v_panels_[32];
  int d_panel_count_;
  int v_panel_count_;
  bool keys_finite_[kMaxBlocks] = {};
  Upcoming upcoming_;
};

// Panels of keys, each `depth` deep, as the second operand of <q, k> and <d_out, v>.
void ChunkRunner::pack_transposed(const TensorView& tensor, int64_t b, int64_t g, int64_t row, int64_t rows,
                                  int64_t depth, float* to) {
  for (int64_t c = 0; c < rows; c += kernels_.panel_width) {
    const int64_t keys = std::min<int64_t>(kernels_.panel_width, rows - c);
    const int64_t padded = round_up(keys, kernels_.lanes);
    kernels_.pack_transposed(head_rows(tensor, b, g, row + c), keys, depth, 1.0f, to, padded);
    to += padded * depth;
  }
}

bool ChunkRunner::pack_panels(const MatrixView& from, int64_t rows, int64_t width, const Panel* panels, int panel_count,
                              float scale, float* to) {
  bool finite = true;
  MatrixView part = from;
  for (int i = 0; i < panel_count; ++i) {
    const int64_t panel_width = panels[i].vectors * kernels_.lanes;
    part.data = static_cast<const std::byte*>(from.data) +
                panels[i].begin * from.column_stride * static_cast<int64_t>(size_in_bytes(from.dtype));
    float* panel = to + panels[i].begin * rows;
    kernels_.convert_rows(part, rows, std::min(panel_width, width - panels[i].begin), scale, panel, panel_width);
    finite = kernels_.all_finite(panel, rows * panel_width) && finite;
  }
  return finite;
}

void ChunkRunner::pack_keys(int64_t b, int64_t g) {
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t first = block * config_.kv_tile;
    const int64_t columns = columns_of(block);
    pack_transposed(call_.forward().k, b, g, kv_begin_ + first, columns, problem_.head_dim,
                    at<float>(layout_.kt) + first * problem_.head_dim);
    pack_transposed(call_.forward().v, b, g, kv_begin_ + first, columns, problem_.value_dim,
                    at<float>(layout_.vt) + first * problem_.value_dim);
  }
  const float* panels = at<float>(layout_.k);
  const bool finite = pack_panels(head_rows(call_.forward().k, b, g, kv_begin_), keys_, problem_.head_dim, d_panels_,
                                  d_panel_count_, 1.0f, at<float>(layout_.k));
  for (int64_t block = 0; block < blocks_; ++block) {
    keys_finite_[block] = true;
    for (int i = 0; !finite && i < d_panel_count_; ++i) {
      const int64_t width = d_panels_[i].vectors * kernels_.lanes;
      const float* from = panels + d_panels_[i].begin * keys_ + block * config_.kv_tile * width;
      keys_finite_[block] = kernels_.all_finite(from, columns_of(block) * width) && keys_finite_[block];
    }
  }
}

Operand ChunkRunner::load(const TensorView& tensor, int64_t b, int64_t h, int64_t q_begin, int64_t rows, int64_t width,
                          const Panel* panels, int panel_count, float scale, size_t panels_at, size_t rows_at) {
  const MatrixView from = head_rows(tensor, b, h, q_begin);
  Operand operand{
      .panels = at<float>(panels_at), .rows = at<float>(panels_at), .stride = panels[0].vectors * kernels_.lanes};
  operand.finite = pack_panels(from, rows, width, panels, panel_count, scale, at<float>(panels_at));
  if (panel_count > 1 && from.dtype == DType::kF32 && from.column_stride == 1 && scale == 1.0f) {
    operand.rows = static_cast<const float*>(from.data);
    operand.stride = from.row_stride;
  } else if (panel_count > 1) {
    operand.rows = at<float>(rows_at);
    operand.stride = width;
    kernels_.convert_rows(from, rows, width, scale, at<float>(rows_at), width);
  }
  return operand;
}

// C = A B^T over a part's keys.
void ChunkRunner::multiply_keys(const Operand& a, const Part& part, int64_t depth, const float* panels, float* c) {
  panels += part.key * depth;
  for (int64_t first = 0; first < part.columns; first += kernels_.panel_width) {
    const int64_t padded = round_up(std::min<int64_t>(kernels_.panel_width, part.columns - first), kernels_.lanes);
    kernels_.multiply(part.rows, static_cast<int>(padded / kernels_.lanes), depth, a.rows + part.row * a.stride,
                      a.stride, panels, padded, c + first, layout_.s_stride, false, upcoming_);
    panels += padded * depth;
  }
}

void ChunkRunner::drop_out(float* scores, const Part& part) {
  for (int64_t r = 0; call_.dropout.threshold > 0 && r < part.rows; ++r) {
    const RowCoordinates& row = at<RowCoordinates>(layout_.coordinates)[part.row + r];
    kernels_.drop_out(scores + r * layout_.s_stride, part.columns, call_.dropout, {row.b, row.h, row.q},
                      kv_begin_ + part.key);
  }
}

ScoreArguments ChunkRunner::score_arguments(const Part& part, float* scores, float* maxima) {
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
          .scale = problem_.scale};
}

// Adds a part's scores to the sums of its rows. Leaves products of a problem without programs multiplied by its scale.
void ChunkRunner::sum_rows(const Part& part, int64_t offset) {
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
    const ScoreArguments arguments = score_arguments(part, scores, maxima);
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

// s becomes p, and ds the gradient of the products times problem_.scale.
void ChunkRunner::finish_scores(const QueryTile& tile, const Part& part, int64_t offset, float scale) {
  float* s = at<float>(layout_.s) + offset;
  float* ds = at<float>(layout_.ds) + offset;
  const RowGradient* states = call_.rows + call_.row_index(tile.b, tile.h, tile.q_begin + part.row);
  const GradientFunction function =
      function_for_tile(call_.kernel.gradient(), problem_, part.partial, part.columns % kernels_.lanes == 0);
  if (function == nullptr) {
    kernels_.score_gradients(s, ds, layout_.s_stride, part.rows, part.columns, scale, states);
    return;
  }
  const GradientArguments arguments{
      .scores = score_arguments(part, s, nullptr), .ds = ds, .rows = states, .gradients = gradients_};
  function(&arguments);
}

// C += coefficients^T B. Where B has an infinity or NaN, only what is not masked takes part.
void ChunkRunner::add_to_keys(const float* coefficients, int64_t tile_rows, const Part& part, const Operand& b,
                              const Panel* panels, int panel_count, float* c, int64_t c_stride) {
  for (int i = 0; i < panel_count; ++i) {
    const int64_t width = panels[i].vectors * kernels_.lanes;
    const float* panel = b.panels + panels[i].begin * tile_rows + part.row * width;
    float* to = c + part.key * c_stride + panels[i].begin;
    if (b.finite) {
      kernels_.multiply_transposed(part.columns, panels[i].vectors, part.rows, coefficients, layout_.s_stride, panel,
                                   width, to, c_stride, upcoming_);
      continue;
    }
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t j = 0; j < part.columns; ++j) {
        const float x = coefficients[r * layout_.s_stride + j];
        for (int64_t d = 0; x != 0 && d < width; ++d) {
          to[j * c_stride + d] = std::fma(x, panel[r * width + d], to[j * c_stride + d]);
        }
      }
    }
  }
}

void ChunkRunner::add_to_queries(const float* ds, const Part& part, float* dq) {
  for (int i = 0; i < d_panel_count_; ++i) {
    const int64_t width = d_panels_[i].vectors * kernels_.lanes;
    const float* panel = at<float>(layout_.k) + d_panels_[i].begin * keys_ + part.key * width;
    float* to = dq + part.row * call_.d_stride + d_panels_[i].begin;
    if (keys_finite_[part.key / config_.kv_tile]) {
      kernels_.multiply(part.rows, d_panels_[i].vectors, part.columns, ds, layout_.s_stride, panel, width, to,
                        call_.d_stride, true, upcoming_);
      continue;
    }
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t j = 0; j < part.columns; ++j) {
        const float x = ds[r * layout_.s_stride + j];
        for (int64_t d = 0; x != 0 && d < width; ++d) {
          to[r * call_.d_stride + d] = std::fma(x, panel[j * width + d], to[r * call_.d_stride + d]);
        }
      }
    }
  }
}

// The chunks before this one add to a query tile first. They were all begun before this one, so that whoever waits
// waits for a thread that works.
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

// Lets the products of a tile with `visited` blocks bring near the next tile of queries, if there is one.
void ChunkRunner::expect_tile(int64_t b, int64_t h, int64_t tile, int64_t visited) {
  const int64_t q_begin = tile * config_.q_tile;
  const int64_t rows = std::min(call_.sizes.q_len - q_begin, config_.q_tile);
  upcoming_ = {};
  if (rows <= 0) {
    return;
  }
  expect(upcoming_, head_rows(call_.forward().q, b, h, q_begin), rows, problem_.head_dim);
  expect(upcoming_, head_rows(call_.arguments.d_out, b, h, q_begin), rows, problem_.value_dim);
  if (call_.dq != nullptr) {
    const float* dq = call_.dq + call_.row_index(b, h, q_begin) * call_.d_stride;
    expect(upcoming_, {dq, DType::kF32, call_.d_stride, 1}, rows, call_.d_stride);
  }
  set_pace(upcoming_, kProducts * visited * upcoming_steps(rows, config_.kv_tile));
}

void ChunkRunner::run_tile(int64_t b, int64_t h, int64_t tile, int64_t position, const plan::TileKind* kinds) {
  const int64_t q_begin = tile * config_.q_tile;
  const int64_t rows = std::min(config_.q_tile, call_.sizes.q_len - q_begin);
  const int32_t sole = call_.sole_block(b, h, q_begin);
  const bool has_sole = sole != BackwardCall::kNoBlock;
  const auto is_visited = [&](int64_t block) {
    return kinds[block] != plan::TileKind::kSkipped && (!has_sole || kv_begin_ / config_.kv_tile + block == sole);
  };
  int64_t visited = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    visited += is_visited(block) ? 1 : 0;
  }
  if (visited == 0) {
    return;
  }
  QueryTile queries{.b = b,
                    .h = h,
                    .q_begin = q_begin,
                    .rows = rows,
                    .position = position,
                    .q = load(call_.forward().q, b, h, q_begin, rows, problem_.head_dim, d_panels_, d_panel_count_,
                              1.0f, layout_.q, layout_.q_rows),
                    .d_out = load(call_.arguments.d_out, b, h, q_begin, rows, problem_.value_dim, v_panels_,
                                  v_panel_count_, call_.dropout.factor, layout_.d_out, layout_.d_out_rows)};
  for (int64_t r = 0; r < rows; ++r) {
    at<RowCoordinates>(layout_.coordinates)[r] = {static_cast<int32_t>(b), static_cast<int32_t>(h),
                                                  static_cast<int32_t>(q_begin + r)};
  }
  expect_tile(b, h, tile + 1, visited);
  for (int64_t block = 0; block < blocks_; ++block) {
    if (!is_visited(block)) {
      continue;
    }
    const Part whole{.row = 0,
                     .rows = rows,
                     .key = block * config_.kv_tile,
                     .columns = columns_of(block),
                     .partial = kinds[block] == plan::TileKind::kPartial};
    if (has_sole) {
      run_sole_block(queries, whole);
      continue;
    }
    Part parts[2] = {whole};
    const int count = whole.partial ? find_parts(queries, whole, parts) : 1;
    for (int i = 0; i < count; ++i) {
      run_part(queries, parts[i]);
    }
  }
}

// What the halves of a partial tile need: on a causal diagonal, less than half of it. Returns how many parts that is.
int ChunkRunner::find_parts(const QueryTile& tile, const Part& whole, Part (&parts)[2]) {
  const int64_t half = config_.kv_tile / 2;
  static_assert(BackwardConfig{}.kv_tile / 2 % 64 == 0, "whole panels, and whole counters of dropout");
  Part first = whole;
  first.columns = std::min(whole.columns, half);
  Part second = whole;
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

// Leaves off the first and last rows that none of the part's keys is kept for; false if that is all of them.
bool ChunkRunner::trim(const QueryTile& tile, Part& part) {
  std::vector<score::Interval>& scratch = memory_.visits[0].scratch;
  const RowRange rows = trim_rows({0, tile.rows}, [&](int64_t begin, int64_t end) {
    const plan::TileBox box{.b = tile.b,
                            .h_begin = tile.h,
                            .h_end = tile.h + 1,
                            .q_begin = tile.q_begin + begin,
                            .q_end = tile.q_begin + end,
                            .kv_begin = kv_begin_ + part.key,
                            .kv_end = kv_begin_ + part.key + part.columns};
    return call_.visits.classify(box, scratch) == plan::TileKind::kSkipped;
  });
  part.row = rows.begin;
  part.rows = rows.end - rows.begin;
  return part.rows > 0;
}

// <q, k> and <d_out, v>, from element `offset` of s and ds on.
void ChunkRunner::multiply(const QueryTile& tile, const Part& part, int64_t offset) {
  multiply_keys(tile.q, part, problem_.head_dim, at<float>(layout_.kt), at<float>(layout_.s) + offset);
  multiply_keys(tile.d_out, part, problem_.value_dim, at<float>(layout_.vt), at<float>(layout_.ds) + offset);
}

// What the probabilities and gradients from element `offset` of s and ds on add to d_v, d_k and dq.
void ChunkRunner::add_products(QueryTile& tile, const Part& part, int64_t offset) {
  const float* p = at<float>(layout_.s) + offset;
  const float* ds = at<float>(layout_.ds) + offset;
  if (call_.arguments.d_v) {
    add_to_keys(p, tile.rows, part, tile.d_out, v_panels_, v_panel_count_, at<float>(layout_.dv), call_.v_stride);
  }
  if (call_.arguments.d_k) {
    add_to_keys(ds, tile.rows, part, tile.q, d_panels_, d_panel_count_, at<float>(layout_.dk), call_.d_stride);
  }
  if (call_.dq != nullptr) {
    if (!tile.waited) {
      wait_for_turn(tile.position);
      tile.waited = true;
    }
    add_to_queries(ds, part, call_.dq + call_.row_index(tile.b, tile.h, tile.q_begin) * call_.d_stride);
  }
}

void ChunkRunner::run_part(QueryTile& tile, const Part& part) {
  multiply(tile, part, 0);
  // What was left out has p = 0 beside v, but its score still has a gradient through the row sum. The factor of what
  // stays is in d_out.
  drop_out(at<float>(layout_.ds), part);
  finish_scores(tile, part, 0, problem_.scale);
  drop_out(at<float>(layout_.s), part);
  add_products(tile, part, 0);
}

// As run_part(), for a tile with all keys of its rows, whose softmax is found here.
void ChunkRunner::run_sole_block(QueryTile& tile, const Part& whole) {
  Part parts[2] = {whole};
  const int count = whole.partial ? find_parts(tile, whole, parts) : 1;
  if (count == 0) {
    return;
  }
  const auto offset = [&](const Part& part) { return part.row * layout_.s_stride + part.key - whole.key; };
  std::fill_n(at<RowSums>(layout_.sums), tile.rows, RowSums{});
  for (int i = 0; i < count; ++i) {
    multiply(tile, parts[i], offset(parts[i]));
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

// Query tiles in rising order, each against all blocks of the chunk that it sees.
void ChunkRunner::run_head(int64_t b, int64_t h, int64_t first_position) {
  const std::span<plan::VisitRow> visits = memory_.visits;
  size_t next[kMaxBlocks] = {};
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t first = kv_begin_ + block * config_.kv_tile;
    call_.visits.column(b, h, h + 1, first, first + columns_of(block), config_.q_tile, visits[block]);
  }
  const int64_t tiles = divide_up(call_.sizes.q_len, config_.q_tile);
  for (int64_t tile = 0; tile < tiles;) {
    plan::TileKind kinds[kMaxBlocks];
    int64_t upcoming = tiles;  // the next tile that some block visits
    for (int64_t block = 0; block < blocks_; ++block) {
      const std::vector<plan::TileRun>& runs = visits[block].runs;
      while (next[block] < runs.size() && runs[next[block]].end <= tile) {
        ++next[block];
      }
      const bool any = next[block] < runs.size();
      const bool visited = any && runs[next[block]].begin <= tile;
      kinds[block] = visited ? runs[next[block]].kind : plan::TileKind::kSkipped;
      upcoming = any ? std::min(upcoming, std::max(runs[next[block]].begin, tile)) : upcoming;
    }
    std::atomic<int64_t>& own = progress_.chunks[chunk_ * progress_.stride];
    own.store(first_position + upcoming, std::memory_order_release);
    own.notify_all();
    if (upcoming == tile) {
      run_tile(b, h, tile, first_position + tile, kinds);
      upcoming = tile + 1;
    }
    tile = upcoming;
  }
}

// A row without keys that gives the mean of all values passes its gradient on to each of them.
void ChunkRunner::add_uniform_rows(int64_t b, int64_t g) {
  float* row = at<float>(layout_.uniform);
  const float factor = call_.dropout.factor / static_cast<float>(call_.sizes.kv_len);
  for (int64_t h = g * call_.sizes.group(); h < (g + 1) * call_.sizes.group(); ++h) {
    for (int64_t q = 0; q < call_.sizes.q_len; ++q) {
      if (call_.rows[call_.row_index(b, h, q)].empty == 0) {
        continue;
      }
      kernels_.convert_rows(head_rows(call_.arguments.d_out, b, h, q), 1, problem_.value_dim, factor, row,
                            call_.v_stride);
      for (int64_t j = 0; j < keys_; ++j) {
        if (call_.dropout.threshold > 0 && !keeps(call_.dropout, {b, h, q}, kv_begin_ + j)) {
          continue;
        }
        float* dv = at<float>(layout_.dv) + j * call_.v_stride;
        for (int64_t d = 0; d < call_.v_stride; ++d) {
          dv[d] += row[d];
        }
      }
    }
  }
}

void ChunkRunner::store(const std::optional<TensorView>& gradient, int64_t b, int64_t g, const float* from,
                        int64_t stride, int64_t width, float factor) {
  if (!gradient) {
    return;
  }
  for (int64_t j = 0; j < keys_; ++j) {
    const int64_t offset = b * gradient->strides[0] + g * gradient->strides[1] + (kv_begin_ + j) * gradient->strides[2];
    std::byte* to =
        static_cast<std::byte*>(gradient->data) + offset * static_cast<int64_t>(size_in_bytes(gradient->dtype));
    kernels_.store_row(from + j * stride, width, factor, to, gradient->dtype, gradient->strides[3]);
  }
}

void ChunkRunner::run_pair(int64_t b, int64_t g, int64_t first_position) {
  pack_keys(b, g);
  std::memset(at<float>(layout_.dk), 0, static_cast<size_t>(keys_ * call_.d_stride) * sizeof(float));
  std::memset(at<float>(layout_.dv), 0, static_cast<size_t>(keys_ * call_.v_stride) * sizeof(float));
  const int64_t tiles = divide_up(call_.sizes.q_len, config_.q_tile);
  for (int64_t i = 0; i < call_.sizes.group(); ++i) {
    run_head(b, g * call_.sizes.group() + i, first_position + i * tiles);
  }
  if (problem_.empty_rows == EmptyRows::kUniform) {
    add_uniform_rows(b, g);
  }
  store(call_.arguments.d_k, b, g, at<float>(layout_.dk), call_.d_stride, problem_.head_dim, problem_.scale);
  store(call_.arguments.d_v, b, g, at<float>(layout_.dv), call_.v_stride, problem_.value_dim, 1.0f);
}

}  // namespace

ChunkLayout::ChunkLayout(const Backward& kernel, const CallSizes& sizes, int64_t kv_chunk) {
  const BackwardConfig& config = kernel.config();
  const int64_t head_dim = kernel.forward().problem().head_dim;
  const int64_t value_dim = kernel.forward().problem().value_dim;
  const int64_t rows = std::min(config.q_tile, sizes.q_len);
  LayoutCounter counter;
  s_stride = config.kv_tile + kRowGap;
  kt = counter.take(kv_chunk * head_dim, sizeof(float));
  k = counter.take(kv_chunk * kernel.d_stride(), sizeof(float));
  vt = counter.take(kv_chunk * value_dim, sizeof(float));
  q = counter.take(rows * kernel.d_stride(), sizeof(float));
  q_rows = counter.take(rows * head_dim, sizeof(float));
  d_out = counter.take(rows * kernel.v_stride(), sizeof(float));
  d_out_rows = counter.take(rows * value_dim, sizeof(float));
  s = counter.take(rows * s_stride, sizeof(float));
  ds = counter.take(rows * s_stride, sizeof(float));
  scores = counter.take(kernel.forward().score() == nullptr ? 0 : rows * s_stride, sizeof(float));
  maxima = counter.take(rows, sizeof(float));
  sums = counter.take(rows, sizeof(RowSums));
  part_sums = counter.take(rows, sizeof(float));
  weighted = counter.take(rows, sizeof(float));
  dk = counter.take(kv_chunk * kernel.d_stride(), sizeof(float));
  dv = counter.take(kv_chunk * kernel.v_stride(), sizeof(float));
  uniform = counter.take(kernel.v_stride(), sizeof(float));
  coordinates = counter.take(rows, sizeof(RowCoordinates));
  bytes = counter.bytes();
}

void run_chunk(const BackwardCall& call, int64_t chunk, int64_t pair_begin, int64_t pair_end, const Progress& progress,
               const CaptureView* gradients, const ChunkLayout& layout, const WorkerMemory& memory) {
  ChunkRunner runner(call, chunk, progress, gradients, layout, memory);
  const int64_t positions = call.sizes.group() * divide_up(call.sizes.q_len, call.kernel.config().q_tile);
  for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
    runner.run_pair(pair / call.sizes.kv_heads, pair % call.sizes.kv_heads, (pair - pair_begin) * positions);
  }
}

}  // namespace flashlift::cpu
