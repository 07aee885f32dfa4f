// Computes what the backward pass needs of each row before its products: the row's softmax and <d_out, out>.
#include <cmath>
#include <limits>

#include "cpu/backward_call.h"
#include "cpu/backward_products.h"
#include "cpu/forward_tile.h"
#include "cpu/tile/pairs.h"
#include "cpu/views.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The f32 rounding of lse is a relative error of the row's probabilities. Up to this size it is half of 2^-20, eight
// times f32's own; if a large finite constant masks a row, all bits are lost. For a larger lse, and for rows without
// keys, maxima and sums are computed again.
constexpr float kTrustedLse = 16;

// The square of an output row's length relative to that of a value. It is about the sum of p^2, and therefore 1 for a
// row of one key. Only a few values are measured.
constexpr double kConcentrated = 0.25;
constexpr int64_t kMeasuredValues = 64;

float f32_at(const TensorView& view, int64_t b, int64_t h, int64_t q) {
  return static_cast<const float*>(view.data)[b * view.strides[0] + h * view.strides[1] + q * view.strides[2]];
}

// The factor that converts sums relative to `max` to sums relative to `reference`. Sums with a maximum of -inf are 0,
// or NaN, which must not change.
double shrink(double max, double reference) {
  return max == reference || max == -kInfinity ? 1.0 : std::exp(max - reference);
}

// `dot` is <d_out, out>.
float row_delta(const BackwardCall& call, int64_t b, int64_t h, int64_t q, double dot) {
  return static_cast<float>(call.arguments.d_lse ? dot - f32_at(*call.arguments.d_lse, b, h, q) : dot);
}

class RowFinder {
 public:
  RowFinder(const BackwardCall& call, int64_t b, int64_t h, int64_t q_begin, const RowsLayout& layout,
            const WorkerMemory& memory)
      : call_(call),
        layout_(layout),
        memory_(memory),
        b_(b),
        h_(h),
        q_begin_(q_begin),
        rows_(std::min(call.kernel.config().q_tile, call.sizes.q_len - q_begin)),
        pairs_(product_pairs(call.kernel, call.sizes)),
        states_(call.rows + call.row_index(b, h, q_begin)) {}

  void run() {
    if (find_sole_block()) {
      return;
    }
    const AttentionArguments& forward = call_.forward();
    // If a stored output was rounded to 16 bits, or summed from rounded probabilities, the error of <d_out, out> is
    // common to all keys of the row, and may exceed all other errors together. In that case the scores are used to
    // compute the equal sum_p (p dp).
    const bool reads_out =
        forward.out.dtype == DType::kF32 && call_.kernel.forward().pairs() == nullptr && !any_row_is_concentrated();
    // Tasks of few rows sum their scores in another order than this pass does.
    bool trusted = forward.lse.has_value() && call_.sizes.group() * call_.sizes.q_len > kDirectRows;
    for (int64_t r = 0; r < rows_; ++r) {
      const float lse = trusted ? f32_at(*forward.lse, b_, h_, q_begin_ + r) : 0;
      states_[r] = {.shift = lse,
                    .factor = 1,
                    .delta = reads_out ? row_delta(call_, b_, h_, q_begin_ + r, out_dot(r)) : 0,
                    .empty = 0};
      trusted = trusted && lse > -kTrustedLse && lse < kTrustedLse;
    }
    if (trusted && reads_out) {
      return;
    }
    sum_scores(!reads_out);
    for (int64_t r = 0; r < rows_; ++r) {
      const float delta = states_[r].delta;
      states_[r] = row_gradient(call_, b_, h_, q_begin_ + r, at<RowSums>(layout_.sums)[r]);
      if (reads_out && states_[r].empty == 0) {
        states_[r].delta = delta;
      }
    }
  }

 private:
  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(memory_.tiles + offset);
  }

  // Whether a single tile has all keys of these rows: that tile then computes their softmax. In such rows, the rounding
  // of lse or of the output matters most: a row's only key has probability 1, however lse was rounded.
  bool find_sole_block() {
    int32_t& sole = call_.sole_block(b_, h_, q_begin_);
    sole = BackwardCall::kNoBlock;
    const int64_t kv_tile = call_.kernel.config().kv_tile;
    // Other chunks must know which rows are empty if empty rows have gradients.
    const bool empty_rows_known =
        call_.problem().empty_rows != EmptyRows::kUniform || call_.sizes.kv_len <= call_.kernel.config().min_chunk;
    if (!call_.multiplies || !empty_rows_known || (call_.visits.all_full() && call_.sizes.kv_len > kv_tile)) {
      return false;
    }
    visits::VisitRow& visits = memory_.visits[0];
    call_.visits.row(b_, h_, h_ + 1, q_begin_, q_begin_ + rows_, kv_tile, visits);
    if (visits.runs.size() != 1 || visits.runs[0].end - visits.runs[0].begin != 1) {
      return false;
    }
    sole = static_cast<int32_t>(visits.runs[0].begin);
    for (int64_t r = 0; r < rows_; ++r) {  // for rows that turn out to have no key
      states_[r] = row_gradient(call_, b_, h_, q_begin_ + r, {});
    }
    return true;
  }

  // Whether some row's output is nearly a single value. Then d_p and delta are nearly equal, and the rounding errors of
  // their difference cancel only if delta sums the same d_p. An output that is the mean of many values is much shorter.
  bool any_row_is_concentrated() {
    const TensorView& v = call_.forward().v;
    const int64_t keys = call_.sizes.kv_len;
    const int64_t step = std::max<int64_t>(1, keys / kMeasuredValues);
    double values = 0;
    int64_t count = 0;
    for (int64_t key = 0; key < keys; key += step, ++count) {
      values += squares(head_rows(v, b_, h_ / call_.sizes.group(), key));
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const double out = squares(head_rows(call_.forward().out, b_, h_, q_begin_ + r));
      if (out * static_cast<double>(count) > kConcentrated * values) {
        return true;
      }
    }
    return false;
  }

  // The sum of a row's squares.
  double squares(const MatrixView& row) {
    float* numbers = at<float>(layout_.out);
    call_.kernels().convert_rows(row, 1, call_.problem().value_dim, 1.0f, numbers, call_.v_stride);
    float sums[4] = {};  // four sums, since each addition to a single one would wait for the one before
    for (int64_t d = 0; d < call_.v_stride; d += 4) {
      for (int64_t i = 0; i < 4; ++i) {
        sums[i] += numbers[d + i] * numbers[d + i];
      }
    }
    return static_cast<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  double out_dot(int64_t r) {
    const int64_t value_dim = call_.problem().value_dim;
    float* out = at<float>(layout_.out);
    float* d_out = out + call_.v_stride;
    call_.kernels().convert_rows(head_rows(call_.forward().out, b_, h_, q_begin_ + r), 1, value_dim, 1.0f, out,
                                 call_.v_stride);
    call_.kernels().convert_rows(head_rows(call_.arguments.d_out, b_, h_, q_begin_ + r), 1, value_dim, 1.0f, d_out,
                                 call_.v_stride);
    double sums[4] = {};  // four sums, as above
    for (int64_t d = 0; d < call_.v_stride; d += 4) {
      for (int64_t i = 0; i < 4; ++i) {
        sums[i] += static_cast<double>(out[d + i]) * static_cast<double>(d_out[d + i]);
      }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // The forward pass with <d_out, v> in place of the values, or without values.
  void sum_scores(bool weighted) {
    const int64_t kv_tile = call_.kernel.config().kv_tile;
    load_rows(weighted);
    std::fill_n(at<RowSums>(layout_.sums), rows_, RowSums{});
    for (int64_t r = 0; r < rows_; ++r) {
      at<RowCoordinates>(layout_.coordinates)[r] = {static_cast<int32_t>(b_), static_cast<int32_t>(h_),
                                                    static_cast<int32_t>(q_begin_ + r)};
    }
    visits::VisitRow& visits = memory_.visits[0];
    call_.visits.row(b_, h_, h_ + 1, q_begin_, q_begin_ + rows_, kv_tile, visits);
    for (const visits::TileRun& run : visits.runs) {
      for (int64_t block = run.begin; block < run.end; ++block) {
        const int64_t columns = std::min(kv_tile, call_.sizes.kv_len - block * kv_tile);
        sum_block(block * kv_tile, columns, run.kind == visits::TileKind::kPartial, weighted);
      }
    }
  }

  // Converts q, and d_out if requested, to the first operands of products. They are identical to those of ChunkRunner,
  // so that terms of ds cancel exactly.
  void load_rows(bool wants_d_out) {
    const MatrixView q = head_rows(call_.forward().q, b_, h_, q_begin_);
    const MatrixView d_out = head_rows(call_.arguments.d_out, b_, h_, q_begin_);
    const int64_t head_dim = call_.problem().head_dim;
    const int64_t value_dim = call_.problem().value_dim;
    if (pairs_ == nullptr) {
      call_.kernels().convert_rows(q, rows_, head_dim, 1.0f, at<float>(layout_.q), head_dim);
      if (wants_d_out) {
        call_.kernels().convert_rows(d_out, rows_, value_dim, call_.dropout.factor, at<float>(layout_.d_out),
                                     value_dim);
      }
      return;
    }
    pairs_->convert_rows(q, rows_, head_dim, 1.0f, at<Bf16>(layout_.q), padded(head_dim));
    if (wants_d_out) {
      has_low_ = load_pair_rows(call_.kernels(), d_out, rows_, value_dim, padded(value_dim), at<Bf16>(layout_.d_out),
                                at<Bf16>(layout_.d_out_low), at<float>(layout_.out));
    }
  }

  int64_t padded(int64_t depth) const { return round_up(depth, int64_t{pairs_->depth_multiple}); }

  // to = <q, keys> of a block.
  void multiply_keys(int64_t kv_begin, int64_t columns, float* to) {
    multiply(layout_.q, nullptr, call_.forward().k, kv_begin, columns, to);
  }
  // to = <d_out, values>.
  void multiply_values(int64_t kv_begin, int64_t columns, float* to) {
    multiply(layout_.d_out, has_low_ ? at<Bf16>(layout_.d_out_low) : nullptr, call_.forward().v, kv_begin, columns, to);
  }

  void multiply(size_t rows_at, const Bf16* low, const TensorView& keys, int64_t kv_begin, int64_t columns, float* to) {
    const TileKernels& kernels = call_.kernels();
    const int64_t depth = keys.sizes[3];
    PrefetchQueue prefetches;
    for (int64_t c = 0; c < columns; c += kernels.panel_width) {
      const int64_t count = std::min<int64_t>(kernels.panel_width, columns - c);
      const int64_t width = round_up(count, kernels.lanes);
      const int vectors = static_cast<int>(width / kernels.lanes);
      const MatrixView panel = head_rows(keys, b_, h_ / call_.sizes.group(), kv_begin + c);
      if (pairs_ == nullptr) {
        kernels.pack_transposed(panel, count, depth, 1.0f, at<float>(layout_.k), width);
        kernels.multiply(rows_, vectors, depth, at<float>(rows_at), depth, at<float>(layout_.k), width, to + c,
                         layout_.s_stride, false, prefetches);
        continue;
      }
      pairs_->pack_transposed(panel, count, depth, at<Bf16>(layout_.k), width, padded(depth));
      pairs_->multiply(rows_, vectors, padded(depth), at<Bf16>(rows_at), padded(depth), at<Bf16>(layout_.k), width,
                       to + c, layout_.s_stride, false, prefetches);
      if (low != nullptr) {
        pairs_->multiply(rows_, vectors, padded(depth), low, padded(depth), at<Bf16>(layout_.k), width, to + c,
                         layout_.s_stride, true, prefetches);
      }
    }
  }

  void sum_block(int64_t kv_begin, int64_t columns, bool partial, bool weighted) {
    const TileKernels& kernels = call_.kernels();
    const Problem& problem = call_.problem();
    float* s = at<float>(layout_.s);
    multiply_keys(kv_begin, columns, s);
    float* maxima = at<float>(layout_.maxima);
    const ScoreFunction function =
        function_for_tile(call_.kernel.forward().score(), problem, partial, columns % kernels.lanes == 0);
    if (function == nullptr) {
      kernels.row_max(s, layout_.s_stride, rows_, columns, problem.scale, maxima);
    } else {
      const ScoreArguments arguments{.s = s,
                                     .s_stride = layout_.s_stride,
                                     .rows = rows_,
                                     .kv_begin = kv_begin,
                                     .columns = columns,
                                     .coordinates = at<RowCoordinates>(layout_.coordinates),
                                     .captures = call_.captures,
                                     .maxima = maxima,
                                     .q_len = static_cast<int32_t>(call_.sizes.q_len),
                                     .kv_len = static_cast<int32_t>(call_.sizes.kv_len),
                                     .scale = problem.scale,
                                     .code = call_.kernel.forward().score()};
      function(&arguments);
    }
    float* dp = s;  // not used: any numbers will do
    if (weighted) {
      dp = at<float>(layout_.dp);
      multiply_values(kv_begin, columns, dp);
      for (int64_t r = 0; call_.dropout.is_active() && r < rows_; ++r) {
        kernels.drop_out(dp + r * layout_.s_stride, columns, call_.dropout, {b_, h_, q_begin_ + r}, kv_begin);
      }
    }
    float* sums = at<float>(layout_.part_sums);
    float* weights = at<float>(layout_.weighted);
    kernels.sum_rows(s, dp, layout_.s_stride, rows_, round_up(columns, kernels.lanes), maxima, sums, weights);
    for (int64_t r = 0; r < rows_; ++r) {
      at<RowSums>(layout_.sums)[r].add({.max = maxima[r], .sum = sums[r], .weighted = weights[r]});
    }
  }

  const BackwardCall& call_;
  const RowsLayout& layout_;
  const WorkerMemory& memory_;
  int64_t b_;
  int64_t h_;
  int64_t q_begin_;
  int64_t rows_;
  const PairKernels* pairs_;
  RowGradient* states_;
  bool has_low_ = false;  // whether d_out has a second bf16 part
};

}  // namespace

void RowSums::add(const RowSums& other) {
  const double both = std::max(max, other.max);
  const double own = shrink(max, both);
  const double others = shrink(other.max, both);
  sum = sum * own + other.sum * others;
  weighted = weighted * own + other.weighted * others;
  max = both;
}

RowGradient row_gradient(const BackwardCall& call, int64_t b, int64_t h, int64_t q, const RowSums& sums) {
  double maximum = sums.max;
  bool any_nan = std::isnan(sums.sum);
  for (int64_t r = 0; r < call.problem().sinks; ++r) {
    const double sink = sink_at(*call.forward().sinks, h, r);
    any_nan |= std::isnan(sink);
    maximum = sink > maximum ? sink : maximum;
  }
  if (any_nan || maximum == kInfinity) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    return {.shift = 0, .factor = kNan, .delta = kNan, .empty = 0};
  }
  if (maximum == -kInfinity) {
    return {.shift = 0, .factor = 0, .delta = 0, .empty = 1};
  }
  const float shift = static_cast<float>(maximum);  // the factor compensates for its rounding
  const double scale = shrink(sums.max, shift);
  double sum = scale * sums.sum;
  for (int64_t r = 0; r < call.problem().sinks; ++r) {
    sum += std::exp(static_cast<double>(sink_at(*call.forward().sinks, h, r)) - shift);
  }
  return {.shift = shift,
          .factor = static_cast<float>(1.0 / sum),
          .delta = row_delta(call, b, h, q, scale / sum * sums.weighted),
          .empty = 0};
}

RowsLayout::RowsLayout(const Backward& kernel, const CallSizes& sizes) {
  const int64_t rows = std::min(kernel.config().q_tile, sizes.q_len);
  const Problem& problem = kernel.forward().problem();
  const TileKernels& kernels = kernel.forward().kernels();
  const PairKernels* pairs = product_pairs(kernel, sizes);
  const int64_t multiple = pairs == nullptr ? 1 : pairs->depth_multiple;
  const size_t element = pairs == nullptr ? sizeof(float) : sizeof(Bf16);
  const bool splits_d_out = pairs != nullptr && problem.d_out_dtype() != DType::kBF16;
  const int64_t q_width = round_up(problem.head_dim, multiple);
  const int64_t v_width = round_up(problem.value_dim, multiple);
  LayoutCounter counter;
  s_stride = kernel.config().kv_tile;
  q = counter.take(rows * q_width, element);
  k = counter.take(kernels.panel_width * std::max(q_width, v_width), element);
  s = counter.take(rows * s_stride, sizeof(float));
  dp = counter.take(rows * s_stride, sizeof(float));
  d_out = counter.take(rows * v_width, element);
  d_out_low = counter.take(splits_d_out ? rows * v_width : 0, element);
  maxima = counter.take(rows, sizeof(float));
  part_sums = counter.take(rows, sizeof(float));
  weighted = counter.take(rows, sizeof(float));
  sums = counter.take(rows, sizeof(RowSums));
  coordinates = counter.take(rows, sizeof(RowCoordinates));
  out = counter.take(2 * std::max(kernel.v_stride(), v_width), sizeof(float));
  bytes = counter.bytes();
}

void find_rows(const BackwardCall& call, int64_t b, int64_t h, int64_t q_begin, const RowsLayout& layout,
               const WorkerMemory& memory) {
  const PairSection section(product_pairs(call.kernel, call.sizes));
  RowFinder(call, b, h, q_begin, layout, memory).run();
}

void store_sink_gradients(const BackwardCall& call, int64_t h_begin, int64_t h_end) {
  const TensorView& gradient = *call.arguments.d_sinks;
  for (int64_t r = 0; r < call.problem().sinks; ++r) {
    double sum = 0;
    for (int64_t b = 0; b < call.sizes.batch; ++b) {
      for (int64_t h = h_begin; h < h_end; ++h) {
        const double sink = sink_at(*call.forward().sinks, h, r);
        for (int64_t q = 0; q < call.sizes.q_len; ++q) {
          const RowGradient& row = call.rows[call.row_index(b, h, q)];
          if (row.empty == 0) {
            sum -= std::exp(sink - row.shift) * row.factor * row.delta;
          }
        }
      }
    }
    static_cast<float*>(gradient.data)[problem::sink_offset(gradient, h_begin, r)] = static_cast<float>(sum);
  }
}

}  // namespace flashlift::cpu
