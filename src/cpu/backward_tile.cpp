// The backward pass's five products, a chunk of keys at a time against all queries that see it.
#include <cmath>
#include <cstring>
#include <thread>

#include "cpu/backward_call.h"
#include "cpu/dropout.h"
#include "cpu/forward_tile.h"
#include "cpu/views.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// Gaps between the rows of the scores: without them, rows read down a column would share a few cache sets.
constexpr int64_t kRowGap = 16;

// A panelled matrix as the product's second operand, and as its first: rows of `stride` floats.
struct Operand {
  float* panels;
  float* rows;
  int64_t stride;
  bool finite = true;
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
        kv_begin_(chunk * config_.kv_chunk),
        keys_(std::min(config_.kv_chunk, call.sizes.kv_len - kv_begin_)),
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
  void multiply_keys(const Operand& a, int64_t rows, int64_t depth, const float* panels, int64_t columns, float* c);
  void finish_scores(int64_t b, int64_t h, int64_t q_begin, int64_t rows, int64_t block, bool partial);
  void drop_out(float* tile, int64_t rows, int64_t block);
  void add_to_keys(const float* coefficients, int64_t rows, int64_t columns, const Operand& b, const Panel* panels,
                   int panel_count, float* c, int64_t c_stride);
  void add_to_queries(int64_t rows, int64_t block, float* dq);
  void wait_for_turn(int64_t position);
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
};

// Panels of keys, each `depth` deep, as the second operand of <q, k> and <d_out, v>.
void ChunkRunner::pack_transposed(const TensorView& tensor, int64_t b, int64_t g, int64_t row, int64_t rows,
                                  int64_t depth, float* to) {
  for (int64_t c = 0; c < rows; c += kernels_.panel_width) {
    const int64_t keys = std::min<int64_t>(kernels_.panel_width, rows - c);
    const int64_t padded = round_up(keys, kernels_.lanes);
    kernels_.pack_transposed(head_rows(tensor, b, g, row + c), keys, depth, to, padded);
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
    keys_finite_[block] = pack_panels(head_rows(call_.forward().k, b, g, kv_begin_ + first), columns, problem_.head_dim,
                                      d_panels_, d_panel_count_, 1.0f, at<float>(layout_.k) + first * call_.d_stride);
  }
}

Operand ChunkRunner::load(const TensorView& tensor, int64_t b, int64_t h, int64_t q_begin, int64_t rows, int64_t width,
                          const Panel* panels, int panel_count, float scale, size_t panels_at, size_t rows_at) {
  const MatrixView from = head_rows(tensor, b, h, q_begin);
  Operand operand{.panels = at<float>(panels_at), .rows = at<float>(panels_at), .stride = 0};
  operand.finite = pack_panels(from, rows, width, panels, panel_count, scale, operand.panels);
  operand.stride = panels[0].vectors * kernels_.lanes;
  if (panel_count > 1) {
    operand.rows = at<float>(rows_at);
    operand.stride = width;
    kernels_.convert_rows(from, rows, width, scale, operand.rows, width);
  }
  return operand;
}

// C = A B^T over one block of keys.
void ChunkRunner::multiply_keys(const Operand& a, int64_t rows, int64_t depth, const float* panels, int64_t columns,
                                float* c) {
  for (int64_t first = 0; first < columns; first += kernels_.panel_width) {
    const int64_t padded = round_up(std::min<int64_t>(kernels_.panel_width, columns - first), kernels_.lanes);
    kernels_.multiply(rows, static_cast<int>(padded / kernels_.lanes), depth, a.rows, a.stride, panels, c + first,
                      layout_.s_stride, false);
    panels += padded * depth;
  }
}

void ChunkRunner::drop_out(float* tile, int64_t rows, int64_t block) {
  for (int64_t r = 0; call_.dropout.threshold > 0 && r < rows; ++r) {
    const RowCoordinates& row = at<RowCoordinates>(layout_.coordinates)[r];
    kernels_.drop_out(tile + r * layout_.s_stride, columns_of(block), call_.dropout, {row.b, row.h, row.q},
                      kv_begin_ + block * config_.kv_tile);
  }
}

// s becomes p, and ds the gradient of the scaled dot products.
void ChunkRunner::finish_scores(int64_t b, int64_t h, int64_t q_begin, int64_t rows, int64_t block, bool partial) {
  const int64_t columns = columns_of(block);
  const RowGradient* states = call_.rows + call_.row_index(b, h, q_begin);
  const GradientFunction function =
      function_for_tile(call_.kernel.gradient(), problem_, partial, columns % kernels_.lanes == 0);
  if (function == nullptr) {
    kernels_.score_gradients(at<float>(layout_.s), at<float>(layout_.ds), layout_.s_stride, rows, columns,
                             problem_.scale, states);
    return;
  }
  const GradientArguments arguments{.scores = {.s = at<float>(layout_.s),
                                               .s_stride = layout_.s_stride,
                                               .rows = rows,
                                               .kv_begin = kv_begin_ + block * config_.kv_tile,
                                               .columns = columns,
                                               .coordinates = at<RowCoordinates>(layout_.coordinates),
                                               .captures = call_.captures,
                                               .maxima = nullptr,
                                               .q_len = static_cast<int32_t>(call_.sizes.q_len),
                                               .kv_len = static_cast<int32_t>(call_.sizes.kv_len),
                                               .scale = problem_.scale},
                                    .ds = at<float>(layout_.ds),
                                    .rows = states,
                                    .gradients = gradients_};
  function(&arguments);
}

// C += coefficients^T B. Where B has an infinity or NaN, only what is not masked takes part.
void ChunkRunner::add_to_keys(const float* coefficients, int64_t rows, int64_t columns, const Operand& b,
                              const Panel* panels, int panel_count, float* c, int64_t c_stride) {
  for (int i = 0; i < panel_count; ++i) {
    const float* panel = b.panels + panels[i].begin * rows;
    float* to = c + panels[i].begin;
    if (b.finite) {
      kernels_.multiply_transposed(columns, panels[i].vectors, rows, coefficients, layout_.s_stride, panel, to,
                                   c_stride);
      continue;
    }
    const int64_t width = panels[i].vectors * kernels_.lanes;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
        const float x = coefficients[r * layout_.s_stride + j];
        for (int64_t d = 0; x != 0 && d < width; ++d) {
          to[j * c_stride + d] = std::fma(x, panel[r * width + d], to[j * c_stride + d]);
        }
      }
    }
  }
}

void ChunkRunner::add_to_queries(int64_t rows, int64_t block, float* dq) {
  const float* ds = at<float>(layout_.ds);
  const int64_t columns = columns_of(block);
  for (int i = 0; i < d_panel_count_; ++i) {
    const float* panel = at<float>(layout_.k) + block * config_.kv_tile * call_.d_stride + d_panels_[i].begin * columns;
    float* to = dq + d_panels_[i].begin;
    if (keys_finite_[block]) {
      kernels_.multiply(rows, d_panels_[i].vectors, columns, ds, layout_.s_stride, panel, to, call_.d_stride, true);
      continue;
    }
    const int64_t width = d_panels_[i].vectors * kernels_.lanes;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
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
      std::this_thread::yield();
      done = other.load(std::memory_order_acquire);
    }
    if (done == Progress::kDone && i == first_unfinished_) {
      ++first_unfinished_;
    }
  }
}

void ChunkRunner::run_tile(int64_t b, int64_t h, int64_t tile, int64_t position, const plan::TileKind* kinds) {
  const int64_t q_begin = tile * config_.q_tile;
  const int64_t rows = std::min(config_.q_tile, call_.sizes.q_len - q_begin);
  const Operand q = load(call_.forward().q, b, h, q_begin, rows, problem_.head_dim, d_panels_, d_panel_count_, 1.0f,
                         layout_.q, layout_.q_rows);
  const Operand d_out = load(call_.arguments.d_out, b, h, q_begin, rows, problem_.value_dim, v_panels_, v_panel_count_,
                             call_.dropout.factor, layout_.d_out, layout_.d_out_rows);
  for (int64_t r = 0; r < rows; ++r) {
    at<RowCoordinates>(layout_.coordinates)[r] = {static_cast<int32_t>(b), static_cast<int32_t>(h),
                                                  static_cast<int32_t>(q_begin + r)};
  }
  float* dq = call_.dq == nullptr ? nullptr : call_.dq + call_.row_index(b, h, q_begin) * call_.d_stride;
  bool waited = false;
  for (int64_t block = 0; block < blocks_; ++block) {
    if (kinds[block] == plan::TileKind::kSkipped) {
      continue;
    }
    const int64_t first = block * config_.kv_tile;
    const int64_t columns = columns_of(block);
    multiply_keys(q, rows, problem_.head_dim, at<float>(layout_.kt) + first * problem_.head_dim, columns,
                  at<float>(layout_.s));
    multiply_keys(d_out, rows, problem_.value_dim, at<float>(layout_.vt) + first * problem_.value_dim, columns,
                  at<float>(layout_.ds));
    // What was left out has p = 0 beside v, but its score still has a gradient through the row sum. The factor of what
    // stays is in d_out.
    drop_out(at<float>(layout_.ds), rows, block);
    finish_scores(b, h, q_begin, rows, block, kinds[block] == plan::TileKind::kPartial);
    drop_out(at<float>(layout_.s), rows, block);
    if (call_.arguments.d_v) {
      add_to_keys(at<float>(layout_.s), rows, columns, d_out, v_panels_, v_panel_count_,
                  at<float>(layout_.dv) + first * call_.v_stride, call_.v_stride);
    }
    if (call_.arguments.d_k) {
      add_to_keys(at<float>(layout_.ds), rows, columns, q, d_panels_, d_panel_count_,
                  at<float>(layout_.dk) + first * call_.d_stride, call_.d_stride);
    }
    if (dq != nullptr) {
      if (!waited) {
        wait_for_turn(position);
        waited = true;
      }
      add_to_queries(rows, block, dq);
    }
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
  std::memset(at<float>(layout_.dk), 0, static_cast<size_t>(config_.kv_chunk * call_.d_stride) * sizeof(float));
  std::memset(at<float>(layout_.dv), 0, static_cast<size_t>(config_.kv_chunk * call_.v_stride) * sizeof(float));
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

ChunkLayout::ChunkLayout(const Backward& kernel, const CallSizes& sizes) {
  const BackwardConfig& config = kernel.config();
  const int64_t head_dim = kernel.forward().problem().head_dim;
  const int64_t value_dim = kernel.forward().problem().value_dim;
  const int64_t rows = std::min(config.q_tile, sizes.q_len);
  LayoutCounter counter;
  s_stride = config.kv_tile + kRowGap;
  kt = counter.take(config.kv_chunk * head_dim, sizeof(float));
  k = counter.take(config.kv_chunk * kernel.d_stride(), sizeof(float));
  vt = counter.take(config.kv_chunk * value_dim, sizeof(float));
  q = counter.take(rows * kernel.d_stride(), sizeof(float));
  q_rows = counter.take(rows * head_dim, sizeof(float));
  d_out = counter.take(rows * kernel.v_stride(), sizeof(float));
  d_out_rows = counter.take(rows * value_dim, sizeof(float));
  s = counter.take(rows * s_stride, sizeof(float));
  ds = counter.take(rows * s_stride, sizeof(float));
  dk = counter.take(config.kv_chunk * kernel.d_stride(), sizeof(float));
  dv = counter.take(config.kv_chunk * kernel.v_stride(), sizeof(float));
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
