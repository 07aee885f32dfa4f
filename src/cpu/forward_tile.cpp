#include "cpu/forward_tile.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <span>

#include "cpu/dropout.h"
#include "cpu/forward_finish.h"
#include "cpu/forward_parts.h"
#include "cpu/prefetch_queue.h"
#include "cpu/tile/pairs.h"
#include "cpu/views.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

Bf16* as_pairs(float* buffer) { return reinterpret_cast<Bf16*>(buffer); }

class TaskRunner {
 public:
  TaskRunner(const ForwardCall& call, const Task& task, const TileLayout& layout, const WorkerMemory& memory)
      : call_(call),
        problem_(call.kernel.problem()),
        kernels_(call.kernel.kernels()),
        pairs_(layout.direct ? nullptr : call.kernel.pairs()),
        task_(task),
        layout_(layout),
        q_(reinterpret_cast<float*>(memory.tiles + layout.q)),
        queries_(q_),
        k_(reinterpret_cast<float*>(memory.tiles + layout.k)),
        v_(reinterpret_cast<float*>(memory.tiles + layout.v)),
        values_(v_),
        s_(reinterpret_cast<float*>(memory.tiles + layout.s)),
        o_(reinterpret_cast<float*>(memory.tiles + layout.o)),
        maxima_(reinterpret_cast<float*>(memory.tiles + layout.maxima)),
        state_(reinterpret_cast<RowState*>(memory.tiles + layout.state)),
        coordinates_(reinterpret_cast<RowCoordinates*>(memory.tiles + layout.coordinates)),
        kept_(reinterpret_cast<uint8_t*>(memory.tiles + layout.kept)),
        gathered_(memory.tiles + layout.gathered),
        kv_tile_(call.kernel.config().kv_tile),
        parts_(call, task, memory.visits.data(), call.parts.of(task)),
        panel_count_(value_panels(problem_.value_dim, kernels_, panels_)) {}

  void run();
  void finish();
  void store_partial(float* partial);

 private:
  const float* dense_queries() const;
  void load_queries(int64_t row_begin, int64_t row_end);
  void load_new_queries(const Part& part);
  void visit_block(std::span<const Part> parts, std::span<const Part> next);
  MatrixView key_rows(const TensorView& tensor, int64_t kv_begin, int64_t columns);
  void pack_keys(int64_t kv_begin, int64_t columns);
  void pack_values(int64_t kv_begin, int64_t columns);
  bool pack_value_pairs(MatrixView values, int64_t columns);
  // Calls body(first, count, place) for each contiguous range of a block's keys: all of them, or those of a page.
  template <typename Body>
  void for_pieces(int64_t kv_begin, int64_t columns, const Body& body) const;
  bool is_stored_by_columns(const TensorView& tensor) const;
  void dot_keys(int64_t kv_begin, int64_t columns);
  void add_values(int64_t kv_begin, int64_t columns);
  void run_direct(int64_t block, bool partial);
  void run_part(const Part& part);
  void to_probabilities(const Part& part);
  void finalize_scores(const Part& part);
  void multiply_keys(const Part& part);
  void multiply_values(const Part& part);
  void drop_out(const Part& part);
  void note_kept(const Part& part);
  void multiply_kept_values(const Part& part);
  void expect_next(std::span<const Part> parts, std::span<const Part> next);
  void expect_queries(int64_t group);

  const ForwardCall& call_;
  const Problem& problem_;
  const TileKernels& kernels_;
  const PairKernels* pairs_;  // null if all products are in f32
  const Task& task_;
  const TileLayout& layout_;
  float* q_;
  const float* queries_;  // q_, or the caller's queries if f32 products can read them directly
  float* k_;
  float* v_;
  const float* values_;  // of the packed block: v_, or the caller's values if products can read them directly
  float* s_;
  float* o_;
  float* maxima_;
  RowState* state_;
  RowCoordinates* coordinates_;
  uint8_t* kept_;
  std::byte* gathered_;
  int64_t kv_tile_;
  PartFinder parts_;
  Panel panels_[32];
  int panel_count_;
  int64_t packed_ = 0;  // number of keys in the packed block
  bool values_finite_ = true;
  std::bitset<kMaxVisitGroups> loaded_;  // groups of rows whose queries are loaded
  PrefetchQueue prefetches_;
};

// The caller's queries if f32 products can read them without conversion or scaling, otherwise null.
const float* TaskRunner::dense_queries() const {
  const TensorView& q = call_.arguments.q;
  const bool dense = q.dtype == DType::kF32 && q.strides[3] == 1 && q.strides[2] == problem_.head_dim &&
                     (task_.h_count == 1 || q.strides[1] == task_.q_count * q.strides[2]);
  return dense && pairs_ == nullptr && !layout_.direct
             ? static_cast<const float*>(head_rows(q, task_.b, task_.h_begin, task_.q_begin).data)
             : nullptr;
}

// Converts queries for the products. If f32 keys are packed, these contain the scale.
void TaskRunner::load_queries(int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end;) {
    const int64_t h = task_.h_begin + row / task_.q_count;
    const int64_t q = task_.q_begin + row % task_.q_count;
    const int64_t count = std::min(row_end - row, task_.q_begin + task_.q_count - q);
    const MatrixView queries = head_rows(call_.arguments.q, task_.b, h, q);
    const int64_t to = row * layout_.q_stride;
    if (pairs_ != nullptr) {
      pairs_->convert_rows(queries, count, problem_.head_dim, call_.kernel.operand_scale(), as_pairs(q_) + to,
                           layout_.q_stride);
    } else if (queries_ == q_) {
      const float scale = layout_.direct ? call_.kernel.operand_scale() : 1.0f;
      kernels_.convert_rows(queries, count, problem_.head_dim, scale, q_ + to, layout_.q_stride);
    }
    for (int64_t i = 0; i < count; ++i) {
      coordinates_[row + i] = {static_cast<int32_t>(task_.b), static_cast<int32_t>(h), static_cast<int32_t>(q + i)};
    }
    row += count;
  }
}

// A row's queries are loaded when its first keys are multiplied. They were prefetched before.
void TaskRunner::load_new_queries(const Part& part) {
  for (int64_t group = part.row_begin / kVisitRows; group * kVisitRows < part.row_end; ++group) {
    if (!loaded_[static_cast<size_t>(group)]) {
      loaded_.set(static_cast<size_t>(group));
      load_queries(group * kVisitRows, std::min((group + 1) * kVisitRows, task_.rows()));
    }
  }
}

template <typename Body>
void TaskRunner::for_pieces(int64_t kv_begin, int64_t columns, const Body& body) const {
  for (int64_t first = 0; first < columns;) {
    const KeyPlace place = key_place(call_.arguments, problem_.page_size, task_.b, kv_begin + first);
    const int64_t rest = columns - first;
    const int64_t count = problem_.page_size == 0 ? rest : std::min(rest, problem_.page_size - place.row);
    body(first, count, place);
    first += count;
  }
}

// Copies rows, and closes the gaps between their elements. Rows that share cache lines are copied together, so that
// each line is read once: keys and values may be stored as [depth, keys].
template <size_t kSize>
void close_gaps(const MatrixView& from, int64_t rows, int64_t columns, std::byte* to) {
  constexpr int64_t kElement = kSize;
  constexpr int64_t kLine = 64;
  const auto* data = static_cast<const std::byte*>(from.data);
  const int64_t together = std::abs(from.row_stride) < std::abs(from.column_stride) ? kLine / kElement : 1;
  for (int64_t begin = 0; begin < rows; begin += together) {
    const int64_t end = std::min(begin + together, rows);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(to + (r * columns + c) * kElement, data + (r * from.row_stride + c * from.column_stride) * kElement,
                    kSize);
      }
    }
  }
}

// The keys (or values) from kv_begin on as one matrix. Gathers paged ones, which costs little compared to packing them,
// and those that direct products could not read as vectors.
MatrixView TaskRunner::key_rows(const TensorView& tensor, int64_t kv_begin, int64_t columns) {
  const bool scattered = layout_.direct && tensor.strides[3] != 1;
  if (problem_.page_size == 0 && !scattered) {
    return head_rows(tensor, task_.b, task_.g, kv_begin);
  }
  const int64_t dim = tensor.sizes[3];
  const size_t element = size_in_bytes(tensor.dtype);
  for_pieces(kv_begin, columns, [&](int64_t first, int64_t count, const KeyPlace& place) {
    const MatrixView rows = head_rows(tensor, place.batch, task_.g, place.row);
    std::byte* to = gathered_ + static_cast<size_t>(first * dim) * element;
    if (rows.column_stride != 1) {
      element == 2 ? close_gaps<2>(rows, count, dim, to) : close_gaps<4>(rows, count, dim, to);
      return;
    }
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(to + static_cast<size_t>(r * dim) * element, row_of(rows, r).data,
                  static_cast<size_t>(dim) * element);
    }
  });
  return {gathered_, tensor.dtype, dim, 1};
}

void TaskRunner::pack_keys(int64_t kv_begin, int64_t columns) {
  const MatrixView keys_view = key_rows(call_.arguments.k, kv_begin, columns);
  const int64_t width = kernels_.panel_width;
  if (pairs_ != nullptr) {
    Bf16* to = as_pairs(k_);
    for (int64_t c = 0; c < columns; c += width) {
      const int64_t keys = std::min(width, columns - c);
      const int64_t padded = round_up(keys, kernels_.lanes);
      pairs_->pack_transposed(row_of(keys_view, c), keys, problem_.head_dim, to, padded, layout_.q_stride);
      to += padded * layout_.q_stride;
    }
    return;
  }
  float* to = k_;
  for (int64_t c = 0; c < columns; c += width) {
    const int64_t keys = std::min(width, columns - c);
    const int64_t padded = round_up(keys, kernels_.lanes);
    kernels_.pack_transposed(row_of(keys_view, c), keys, problem_.head_dim, call_.kernel.operand_scale(), to, padded);
    to += padded * problem_.head_dim;
  }
}

void TaskRunner::pack_values(int64_t kv_begin, int64_t columns) {
  MatrixView values = key_rows(call_.arguments.v, kv_begin, columns);
  const std::byte* base = static_cast<const std::byte*>(values.data);
  const int64_t element = static_cast<int64_t>(size_in_bytes(values.dtype));
  if (pairs_ != nullptr && pack_value_pairs(values, columns)) {
    return;
  }
  const bool one_panel = panel_count_ == 1 && problem_.value_dim == panels_[0].vectors * kernels_.lanes;
  if (one_panel && values.dtype == DType::kF32 && values.column_stride == 1 &&
      values.row_stride == problem_.value_dim) {
    values_ = static_cast<const float*>(values.data);
    values_finite_ = kernels_.all_finite(values_, columns * problem_.value_dim);
    return;
  }
  values_ = v_;
  values_finite_ = true;
  for (int i = 0; i < panel_count_; ++i) {
    const Panel& panel = panels_[i];
    const int64_t width = panel.vectors * kernels_.lanes;
    values.data = base + panel.begin * values.column_stride * element;
    float* to = v_ + panel.begin * columns;
    kernels_.convert_rows(values, columns, std::min(width, problem_.value_dim - panel.begin), 1.0f, to, width);
    values_finite_ = values_finite_ && kernels_.all_finite(to, columns * width);
  }
}

// Returns false if an element is infinite or NaN: such a block is multiplied in f32 by multiply_kept_values().
bool TaskRunner::pack_value_pairs(MatrixView values, int64_t columns) {
  const std::byte* base = static_cast<const std::byte*>(values.data);
  const int64_t depth = round_up(columns, pairs_->depth_multiple);
  values_finite_ = true;
  for (int i = 0; i < panel_count_ && values_finite_; ++i) {
    const Panel& panel = panels_[i];
    const int64_t width = panel.vectors * kernels_.lanes;
    values.data = base + panel.begin * values.column_stride * static_cast<int64_t>(sizeof(Bf16));
    values_finite_ = pairs_->pack(values, columns, std::min(width, problem_.value_dim - panel.begin),
                                  as_pairs(v_) + panel.begin * depth, width, depth);
  }
  return values_finite_;
}

void TaskRunner::finalize_scores(const Part& part) {
  const ScoreFunction function =
      function_for_tile(call_.kernel.score(), problem_, part.partial, part.columns % kernels_.lanes == 0);
  if (function == nullptr) {
    kernels_.row_max(s_, kv_tile_, part.rows(), part.columns, call_.kernel.score_scale(), maxima_ + part.row_begin);
    return;
  }
  const ScoreArguments arguments{.s = s_,
                                 .s_stride = kv_tile_,
                                 .rows = part.rows(),
                                 .kv_begin = part.block * kv_tile_ + part.column,
                                 .columns = part.columns,
                                 .coordinates = coordinates_ + part.row_begin,
                                 .captures = call_.captures,
                                 .maxima = maxima_ + part.row_begin,
                                 .q_len = static_cast<int32_t>(call_.sizes.q_len),
                                 .kv_len = static_cast<int32_t>(call_.sizes.kv_len),
                                 .scale = call_.kernel.score_scale(),
                                 .code = call_.kernel.score()};
  function(&arguments);
}

void TaskRunner::multiply_values(const Part& part) {
  for (int i = 0; i < panel_count_; ++i) {
    const int64_t width = panels_[i].vectors * kernels_.lanes;
    const int64_t first = part.column * width;
    float* out = o_ + part.row_begin * layout_.o_stride + panels_[i].begin;
    if (pairs_ != nullptr) {
      const Bf16* panel = as_pairs(v_) + panels_[i].begin * round_up(packed_, pairs_->depth_multiple) + first;
      pairs_->multiply(part.rows(), panels_[i].vectors, round_up(part.columns, pairs_->depth_multiple), as_pairs(s_),
                       2 * kv_tile_, panel, width, out, layout_.o_stride, true, prefetches_);
    } else {
      kernels_.multiply(part.rows(), panels_[i].vectors, part.columns, s_, kv_tile_,
                        values_ + panels_[i].begin * packed_ + first, width, out, layout_.o_stride, true, prefetches_);
    }
  }
}

// Runs after the softmax, whose sums do not include dropout.
void TaskRunner::drop_out(const Part& part) {
  for (int64_t r = 0; r < part.rows(); ++r) {
    const RowCoordinates& at = coordinates_[part.row_begin + r];
    float* row = s_ + r * kv_tile_;
    const DropoutRow dropout_row{at.b, at.h, at.q};
    const int64_t kv_begin = part.block * kv_tile_ + part.column;
    kernels_.drop_out(row, part.columns, call_.dropout, dropout_row, kv_begin);
    if (!values_finite_) {
      for (int64_t c = 0; c < part.columns; ++c) {
        // A probability of 0 may also be that of a kept key, too small for f32.
        uint8_t& kept = kept_[r * kv_tile_ + c];
        kept = kept && (row[c] != 0 || keeps(call_.dropout, dropout_row, kv_begin + c));
      }
    }
  }
}

// A masked key must have no effect even if its value is infinite or NaN, although 0 times the value would be NaN. Such
// blocks are rare (for example uninitialised values after the end of a sequence), and only they have this cost.
void TaskRunner::note_kept(const Part& part) {
  for (int64_t r = 0; r < part.rows(); ++r) {
    for (int64_t c = 0; c < part.columns; ++c) {
      kept_[r * kv_tile_ + c] = s_[r * kv_tile_ + c] != -std::numeric_limits<float>::infinity();
    }
  }
}

void TaskRunner::multiply_kept_values(const Part& part) {
  for (int i = 0; i < panel_count_; ++i) {
    const int64_t width = panels_[i].vectors * kernels_.lanes;
    const float* panel = values_ + panels_[i].begin * packed_ + part.column * width;
    for (int64_t r = 0; r < part.rows(); ++r) {
      float* out = o_ + (part.row_begin + r) * layout_.o_stride + panels_[i].begin;
      for (int64_t c = 0; c < part.columns; ++c) {
        if (kept_[r * kv_tile_ + c]) {
          const float p = s_[r * kv_tile_ + c];
          for (int64_t d = 0; d < width; ++d) {
            out[d] = std::fma(p, panel[c * width + d], out[d]);
          }
        }
      }
    }
  }
}

// A part may start and end within a panel.
void TaskRunner::multiply_keys(const Part& part) {
  const int64_t width = kernels_.panel_width;
  const int64_t depth = layout_.q_stride;
  const int64_t end = part.column + part.columns;
  for (int64_t key = part.column; key < end;) {
    const int64_t panel = key / width * width;
    const int64_t panel_keys = std::min(width, round_up(packed_ - panel, kernels_.lanes));
    const int64_t keys = std::min(end, panel + width) - key;
    const int vectors = static_cast<int>(divide_up(keys, kernels_.lanes));
    float* out = s_ + key - part.column;
    if (pairs_ != nullptr) {
      pairs_->multiply(part.rows(), vectors, depth, as_pairs(q_) + part.row_begin * depth, depth,
                       as_pairs(k_) + panel * depth + 2 * (key - panel), panel_keys, out, kv_tile_, false, prefetches_);
    } else {
      kernels_.multiply(part.rows(), vectors, depth, queries_ + part.row_begin * depth, depth,
                        k_ + panel * depth + key - panel, panel_keys, out, kv_tile_, false, prefetches_);
    }
    key += keys;
  }
}

// Whether neighbouring keys are neighbours in memory, as in a cache that is stored as [depth, keys]: a product with
// such keys is one with the rows of their transposed matrix, which are read as vectors.
bool TaskRunner::is_stored_by_columns(const TensorView& tensor) const {
  return problem_.page_size == 0 && tensor.strides[2] == 1 && tensor.strides[3] != 1;
}

// Prefetches values while keys are read, and the next block's keys while values are read.
void TaskRunner::dot_keys(int64_t kv_begin, int64_t columns) {
  const TensorView& k = call_.arguments.k;
  const auto dot = [&](const MatrixView& keys, int64_t first, int64_t count, const MatrixView& next) {
    kernels_.dot_rows(keys, count, problem_.head_dim, q_, layout_.q_stride, task_.rows(), s_ + first, kv_tile_, next);
  };
  if (is_stored_by_columns(k)) {
    for (int64_t r = 0; r < task_.rows(); ++r) {
      std::fill_n(s_ + r * kv_tile_, round_up(columns, kernels_.lanes), 0.0f);
    }
    kernels_.add_rows(transposed(head_rows(k, task_.b, task_.g, kv_begin)), problem_.head_dim, columns, q_,
                      layout_.q_stride, task_.rows(), s_, kv_tile_, {});
    return;
  }
  if (k.strides[3] != 1) {
    dot(key_rows(k, kv_begin, columns), 0, columns, {});
    return;
  }
  for_pieces(kv_begin, columns, [&](int64_t first, int64_t count, const KeyPlace& place) {
    dot(head_rows(k, place.batch, task_.g, place.row), first, count,
        head_rows(call_.arguments.v, place.batch, task_.g, place.row));
  });
}

// Adds to outputs that are 0.
void TaskRunner::add_values(int64_t kv_begin, int64_t columns) {
  const TensorView& v = call_.arguments.v;
  const auto add = [&](const MatrixView& values, int64_t first, int64_t count, const MatrixView& next) {
    kernels_.add_rows(values, count, problem_.value_dim, s_ + first, kv_tile_, task_.rows(), o_, layout_.o_stride,
                      next);
  };
  if (is_stored_by_columns(v)) {
    kernels_.dot_rows(transposed(head_rows(v, task_.b, task_.g, kv_begin)), problem_.value_dim, columns, s_, kv_tile_,
                      task_.rows(), o_, layout_.o_stride, {});
    return;
  }
  if (v.strides[3] != 1) {
    add(key_rows(v, kv_begin, columns), 0, columns, {});
    return;
  }
  const int64_t next = parts_.block_after(kv_begin / kv_tile_) * kv_tile_;
  for_pieces(kv_begin, columns, [&](int64_t first, int64_t count, const KeyPlace& place) {
    MatrixView next_keys{};
    if (next + first < call_.sizes.kv_len) {
      const KeyPlace there = key_place(call_.arguments, problem_.page_size, task_.b, next + first);
      next_keys = head_rows(call_.arguments.k, there.batch, task_.g, there.row);
    }
    add(head_rows(v, place.batch, task_.g, place.row), first, count, next_keys);
  });
}

// With few rows, keys and values are read once and not packed, because packing would be most of the work.
void TaskRunner::run_direct(int64_t block, bool partial) {
  const int64_t rows = task_.rows();
  const int64_t kv_begin = block * kv_tile_;
  const int64_t columns = std::min(kv_tile_, call_.sizes.kv_len - kv_begin);
  const Part whole{
      .block = block, .row_begin = 0, .row_end = rows, .column = 0, .columns = columns, .partial = partial};
  dot_keys(kv_begin, columns);
  values_finite_ = true;
  to_probabilities(whole);
  const int64_t outputs = rows * layout_.o_stride;
  float* before = v_;
  std::copy_n(o_, outputs, before);
  // The block's terms are summed first and then added: one by one, a large sum would round each of them, and alike
  // terms (equal tokens) in the same direction.
  std::fill_n(o_, outputs, 0.0f);
  add_values(kv_begin, columns);
  if (kernels_.all_finite(o_, outputs)) {
    std::transform(o_, o_ + outputs, before, o_, std::plus<>());
  } else {  // possibly 0 times the infinite or NaN value of a masked key
    // Only scores show which keys are masked: the probabilities of others may be 0, too.
    RowState states[kDirectRows];
    std::copy_n(state_, rows, states);
    dot_keys(kv_begin, columns);
    values_finite_ = false;
    to_probabilities(whole);
    std::copy_n(states, rows, state_);
    std::copy_n(before, outputs, o_);
    packed_ = columns;
    pack_values(kv_begin, columns);
    multiply_kept_values(whole);
  }
}

void TaskRunner::to_probabilities(const Part& part) {
  finalize_scores(part);
  if (!values_finite_) {
    note_kept(part);
  }
  const auto softmax = pairs_ != nullptr && values_finite_ ? pairs_->softmax : kernels_.softmax;
  softmax(s_, kv_tile_, part.rows(), round_up(part.columns, kernels_.lanes), maxima_ + part.row_begin,
          state_ + part.row_begin, o_ + part.row_begin * layout_.o_stride, layout_.o_stride, layout_.o_stride);
  if (call_.dropout.is_active()) {
    drop_out(part);
  }
}

void TaskRunner::run_part(const Part& part) {
  multiply_keys(part);
  to_probabilities(part);
  if (values_finite_) {
    multiply_values(part);
  } else {
    multiply_kept_values(part);
  }
}

void TaskRunner::expect_queries(int64_t group) {
  const int64_t row = group * kVisitRows;
  const int64_t q = row % task_.q_count;
  const int64_t rows = std::min({kVisitRows, task_.rows() - row, task_.q_count - q});
  push(prefetches_, head_rows(call_.arguments.q, task_.b, task_.h_begin + row / task_.q_count, task_.q_begin + q), rows,
       problem_.head_dim);
}

// Makes the products of a block's parts prefetch what is read next: the queries of new rows, and the next block's keys
// and values.
void TaskRunner::expect_next(std::span<const Part> parts, std::span<const Part> next) {
  prefetches_ = {};
  std::bitset<kMaxVisitGroups> expected = loaded_;
  const auto expect_new = [&](const Part& part) {
    for (int64_t group = part.row_begin / kVisitRows; group * kVisitRows < part.row_end; ++group) {
      if (!expected[static_cast<size_t>(group)]) {
        expected.set(static_cast<size_t>(group));
        expect_queries(group);
      }
    }
  };
  int64_t steps = 0;
  for (const Part& part : parts) {
    expect_new(part);
    steps += prefetch_steps(part.rows(), layout_.q_stride) * divide_up(part.columns, kernels_.panel_width) +
             prefetch_steps(part.rows(), part.columns) * panel_count_;
  }
  if (!next.empty() && problem_.page_size == 0) {
    const int64_t first = next[0].block * kv_tile_;
    const int64_t columns = std::min(kv_tile_, call_.sizes.kv_len - first);
    push(prefetches_, head_rows(call_.arguments.k, task_.b, task_.g, first), columns, problem_.head_dim);
    push(prefetches_, head_rows(call_.arguments.v, task_.b, task_.g, first), columns, problem_.value_dim);
  }
  for (const Part& part : next) {
    expect_new(part);
  }
  set_rate(prefetches_, steps);
}

void TaskRunner::visit_block(std::span<const Part> parts, std::span<const Part> next) {
  const int64_t kv_begin = parts[0].block * kv_tile_;
  packed_ = std::min(kv_tile_, call_.sizes.kv_len - kv_begin);
  pack_keys(kv_begin, packed_);
  pack_values(kv_begin, packed_);
  load_new_queries(parts[0]);
  expect_next(parts, next);
  for (const Part& part : parts) {
    load_new_queries(part);
    run_part(part);
  }
  drain(kernels_, prefetches_);  // what the products did not prefetch
}

void TaskRunner::run() {
  const PairSection section(pairs_);
  std::fill_n(state_, task_.rows(), RowState{});
  std::memset(o_, 0, static_cast<size_t>(task_.rows() * layout_.o_stride) * sizeof(float));
  if (!layout_.direct) {
    if (const float* queries = dense_queries(); queries != nullptr) {
      queries_ = queries;
    }
    for (std::span<const Part> parts = parts_.next(), next; !parts.empty(); parts = next) {
      next = parts_.next();
      visit_block(parts, next);
    }
    return;
  }
  load_queries(0, task_.rows());
  for (int64_t block = parts_.block_after(-1); block * kv_tile_ < call_.sizes.kv_len;
       block = parts_.block_after(block)) {
    run_direct(block, parts_.first_kind(block) == visits::TileKind::kPartial);
  }
}

void TaskRunner::finish() {
  for (int64_t i = 0; i < task_.h_count; ++i) {
    const int64_t row = i * task_.q_count;
    finish_rows(call_,
                {.b = task_.b,
                 .g = task_.g,
                 .h = task_.h_begin + i,
                 .q = task_.q_begin,
                 .count = task_.q_count,
                 .states = state_ + row,
                 .accumulated = o_ + row * layout_.o_stride,
                 .stride = layout_.o_stride},
                s_);
  }
}

void TaskRunner::store_partial(float* partial) {
  for (int64_t r = 0; r < task_.rows(); ++r) {
    float* to = partial + r * partial_stride(layout_.o_stride);
    to[0] = state_[r].max;
    to[1] = state_[r].sum;
    to[2] = state_[r].divisor;
    std::memcpy(to + 16, o_ + r * layout_.o_stride, static_cast<size_t>(layout_.o_stride) * sizeof(float));
  }
}

}  // namespace

TileLayout::TileLayout(const Forward& kernel, int64_t rows) {
  const Problem& problem = kernel.problem();
  const int64_t kv_tile = kernel.config().kv_tile;
  o_stride = round_up(problem.value_dim, kernel.kernels().lanes);
  LayoutCounter counter;
  direct = rows <= kDirectRows;
  const PairKernels* pairs = direct ? nullptr : kernel.pairs();
  q_stride = pairs == nullptr ? problem.head_dim : round_up(problem.head_dim, pairs->depth_multiple);
  const size_t element = pairs == nullptr ? sizeof(float) : sizeof(Bf16);
  q = counter.take(rows * q_stride, element);
  k = counter.take(kv_tile * q_stride, element);
  v = counter.take(kv_tile * o_stride, sizeof(float));
  // finish() uses the memory of the scores for one row of output.
  s = counter.take(std::max(std::min(rows, kVisitRows * kRunGroups) * kv_tile, o_stride), sizeof(float));
  o = counter.take(rows * o_stride, sizeof(float));
  maxima = counter.take(rows, sizeof(float));
  state = counter.take(rows, sizeof(RowState));
  coordinates = counter.take(rows, sizeof(RowCoordinates));
  kept = counter.take(std::min(rows, kVisitRows * kRunGroups) * kv_tile, 1);
  gathered = counter.take(problem.page_size > 0 || direct ? kv_tile * std::max(problem.head_dim, problem.value_dim) : 0,
                          size_in_bytes(problem.dtype));
  bytes = counter.bytes();
}

int value_panels(int64_t value_dim, const TileKernels& kernels, Panel (&panels)[32]) {
  const int64_t vectors = divide_up(value_dim, kernels.lanes);
  const int64_t most = kernels.panel_width / kernels.lanes;
  const int64_t count = divide_up(vectors, most);
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = vectors * (i + 1) / count;
    panels[i] = {begin * kernels.lanes, static_cast<int>(end - begin)};
    begin = end;
  }
  return static_cast<int>(count);
}

void run_task(const ForwardCall& call, const Task& task, const TileLayout& layout, const WorkerMemory& memory) {
  TaskRunner runner(call, task, layout, memory);
  runner.run();
  runner.finish();
}

void run_split(const ForwardCall& call, const Task& task, const TileLayout& layout, const WorkerMemory& memory,
               float* partial) {
  TaskRunner runner(call, task, layout, memory);
  runner.run();
  runner.store_partial(partial);
}

}  // namespace flashlift::cpu
