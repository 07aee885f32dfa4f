// The backward pass's products with bf16 operands.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/backward_products.h"
#include "cpu/views.h"
#include "support/half.h"
#include "support/rounding.h"

namespace flashlift::cpu {

bool load_pair_rows(const TileKernels& kernels, const MatrixView& from, int64_t rows, int64_t width, int64_t stride,
                    Bf16* high, Bf16* low, float* row) {
  if (from.dtype == DType::kBF16) {
    kernels.pairs->convert_rows(from, rows, width, 1.0f, high, stride);
    return false;
  }
  bool has_low = false;
  for (int64_t r = 0; r < rows; ++r) {
    kernels.convert_rows(row_of(from, r), 1, width, 1.0f, row, stride);
    has_low = kernels.pairs->split(row, stride, high + r * stride, low + r * stride) || has_low;
  }
  return has_low;
}

PairProducts::PairProducts(const BackwardCall& call, int64_t chunk, const ChunkLayout& layout,
                           const WorkerMemory& memory)
    : BackwardProducts(call, chunk, layout, memory), pairs_(*call.kernels().pairs) {}

int64_t PairProducts::padded(int64_t depth) const { return round_up(depth, int64_t{pairs_.depth_multiple}); }

void PairProducts::begin(int64_t b, int64_t g) {
  const auto pack_transposed = [&](const TensorView& tensor, int64_t first, int64_t columns, int64_t width, Bf16* to) {
    for (int64_t c = 0; c < columns; c += kernels_.panel_width) {
      const int64_t keys = std::min<int64_t>(kernels_.panel_width, columns - c);
      const int64_t panel = round_up(keys, kernels_.lanes);
      pairs_.pack_transposed(head_rows(tensor, b, g, kv_begin_ + first + c), keys, width, to, panel, padded(width));
      to += panel * padded(width);
    }
  };
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t first = block * kv_tile_;
    const int64_t columns = columns_of(block);
    pack_transposed(call_.forward().k, first, columns, problem_.head_dim,
                    at<Bf16>(layout_.kt) + first * padded(problem_.head_dim));
    pack_transposed(call_.forward().v, first, columns, problem_.value_dim,
                    at<Bf16>(layout_.vt) + first * padded(problem_.value_dim));
    MatrixView keys = head_rows(call_.forward().k, b, g, kv_begin_ + first);
    const auto* base = static_cast<const Bf16*>(keys.data);
    keys_finite_[block] = true;
    for (int i = 0; i < d_panel_count_; ++i) {
      const int64_t width = d_panels_[i].vectors * kernels_.lanes;
      keys.data = base + d_panels_[i].begin * keys.column_stride;
      Bf16* panel = at<Bf16>(layout_.k) + d_panels_[i].begin * padded(keys_) + first * width;
      keys_finite_[block] = pairs_.pack(keys, columns, std::min(width, problem_.head_dim - d_panels_[i].begin), panel,
                                        width, padded(columns)) &&
                            keys_finite_[block];
    }
  }
  std::memset(at<float>(layout_.dk), 0, static_cast<size_t>(problem_.head_dim * layout_.keys_stride) * sizeof(float));
  std::memset(at<float>(layout_.dv), 0, static_cast<size_t>(problem_.value_dim * layout_.keys_stride) * sizeof(float));
}

void PairProducts::load(int64_t b, int64_t h, int64_t q_begin, int64_t rows) {
  const int64_t q_stride = padded(problem_.head_dim);
  const int64_t v_stride = padded(problem_.value_dim);
  q_view_ = head_rows(call_.forward().q, b, h, q_begin);
  d_out_view_ = head_rows(call_.arguments.d_out, b, h, q_begin);
  Bf16* q = at<Bf16>(layout_.q_rows);
  pairs_.convert_rows(q_view_, rows, problem_.head_dim, 1.0f, q, q_stride);
  q_finite_ = pairs_.transpose(q, q_stride, rows, problem_.head_dim, at<Bf16>(layout_.q), layout_.rows_stride);
  Bf16* d_out = at<Bf16>(layout_.d_out_rows);
  Bf16* low = at<Bf16>(layout_.d_out_low_rows);
  has_low_ =
      load_pair_rows(kernels_, d_out_view_, rows, problem_.value_dim, v_stride, d_out, low, at<float>(layout_.row));
  if (has_low_) {
    pairs_.transpose(low, v_stride, rows, problem_.value_dim, at<Bf16>(layout_.d_out_low), layout_.rows_stride);
  }
  d_out_finite_ =
      pairs_.transpose(d_out, v_stride, rows, problem_.value_dim, at<Bf16>(layout_.d_out), layout_.rows_stride);
}

// C (+)= A B^T for the keys of a part.
void PairProducts::multiply_keys(const Bf16* a, const ScorePart& part, int64_t depth, const Bf16* panels, float* c,
                                 bool accumulate) {
  panels += part.key * depth;
  for (int64_t first = 0; first < part.columns; first += kernels_.panel_width) {
    const int64_t width = round_up(std::min<int64_t>(kernels_.panel_width, part.columns - first), kernels_.lanes);
    pairs_.multiply(part.rows, static_cast<int>(width / kernels_.lanes), depth, a + part.row * depth, depth, panels,
                    width, c + first, layout_.s_stride, accumulate, prefetches);
    panels += width * depth;
  }
}

void PairProducts::multiply(const ScorePart& part, float* s, float* dp) {
  const Bf16* vt = at<Bf16>(layout_.vt);
  multiply_keys(at<Bf16>(layout_.q_rows), part, padded(problem_.head_dim), at<Bf16>(layout_.kt), s, false);
  multiply_keys(at<Bf16>(layout_.d_out_rows), part, padded(problem_.value_dim), vt, dp, false);
  if (has_low_) {
    multiply_keys(at<Bf16>(layout_.d_out_low_rows), part, padded(problem_.value_dim), vt, dp, true);
  }
}

// Packs a part's coefficients as the second operand of a product whose depth is the part's rows.
void PairProducts::pack_columns(const float* coefficients, const ScorePart& part) {
  Bf16* panel = at<Bf16>(layout_.columns);
  const int64_t depth = padded(part.rows);
  for (int64_t first = 0; first < part.columns; first += kernels_.panel_width) {
    const int64_t width = round_up(std::min<int64_t>(kernels_.panel_width, part.columns - first), kernels_.lanes);
    pairs_.round_panel(coefficients + first, layout_.s_stride, part.rows, std::min(width, part.columns - first), panel,
                       width, depth);
    panel += width * depth;
  }
}

// C += A (the packed coefficients), for the part's keys. A's columns are the tile's rows, followed by zeros.
void PairProducts::add_transposed(const Bf16* a, int64_t a_rows, const ScorePart& part, float* c) {
  const Bf16* panel = at<Bf16>(layout_.columns);
  const int64_t depth = padded(part.rows);
  for (int64_t first = 0; first < part.columns; first += kernels_.panel_width) {
    const int64_t width = round_up(std::min<int64_t>(kernels_.panel_width, part.columns - first), kernels_.lanes);
    pairs_.multiply(a_rows, static_cast<int>(width / kernels_.lanes), depth, a + part.row, layout_.rows_stride, panel,
                    width, c + part.key + first, layout_.keys_stride, true, prefetches);
    panel += width * depth;
  }
}

// The same for a tile that contains an infinity or NaN.
void PairProducts::add_elements(const float* coefficients, const ScorePart& part, const MatrixView& b, int64_t width,
                                float* c) {
  float* row = at<float>(layout_.row);
  for (int64_t r = 0; r < part.rows; ++r) {
    kernels_.convert_rows(row_of(b, part.row + r), 1, width, 1.0f, row, round_up(width, int64_t{kernels_.lanes}));
    for (int64_t j = 0; j < part.columns; ++j) {
      const float x = coefficients[r * layout_.s_stride + j];
      for (int64_t d = 0; x != 0 && d < width; ++d) {
        float& to = c[d * layout_.keys_stride + part.key + j];
        to = std::fma(x, row[d], to);
      }
    }
  }
}

void PairProducts::add_to_values(const ScorePart& part, const float* p) {
  float* dv = at<float>(layout_.dv);
  if (!d_out_finite_) {
    add_elements(p, part, d_out_view_, problem_.value_dim, dv);
    return;
  }
  pack_columns(p, part);
  add_transposed(at<Bf16>(layout_.d_out), problem_.value_dim, part, dv);
  if (has_low_) {
    add_transposed(at<Bf16>(layout_.d_out_low), problem_.value_dim, part, dv);
  }
}

void PairProducts::add_to_keys(const ScorePart& part, const float* ds) {
  float* dk = at<float>(layout_.dk);
  if (!q_finite_) {
    add_elements(ds, part, q_view_, problem_.head_dim, dk);
    return;
  }
  pack_columns(ds, part);
  add_transposed(at<Bf16>(layout_.q), problem_.head_dim, part, dk);
}

void PairProducts::add_to_queries(const ScorePart& part, const float* ds, float* dq) {
  float* to = dq + part.row * call_.d_stride;
  if (!keys_finite_[part.key / kv_tile_]) {
    // Unpacks the keys: a bf16 number is the upper two bytes of an f32 number.
    for (int i = 0; i < d_panel_count_; ++i) {
      const int64_t width = d_panels_[i].vectors * kernels_.lanes;
      const Bf16* panel = at<Bf16>(layout_.k) + d_panels_[i].begin * padded(keys_) + part.key * width;
      for (int64_t r = 0; r < part.rows; ++r) {
        for (int64_t j = 0; j < part.columns; ++j) {
          const float x = ds[r * layout_.s_stride + j];
          for (int64_t d = 0; x != 0 && d < width; ++d) {
            float& sum = to[r * call_.d_stride + d_panels_[i].begin + d];
            sum = std::fma(x, bf16_to_float(panel[j / 2 * 2 * width + 2 * d + j % 2]), sum);
          }
        }
      }
    }
    return;
  }
  const int64_t depth = padded(part.columns);
  Bf16* rows = at<Bf16>(layout_.columns);
  pairs_.round_rows(ds, layout_.s_stride, part.rows, part.columns, rows, depth);
  for (int i = 0; i < d_panel_count_; ++i) {
    const int64_t width = d_panels_[i].vectors * kernels_.lanes;
    const Bf16* panel = at<Bf16>(layout_.k) + d_panels_[i].begin * padded(keys_) + part.key * width;
    pairs_.multiply(part.rows, d_panels_[i].vectors, depth, rows, depth, panel, width, to + d_panels_[i].begin,
                    call_.d_stride, true, prefetches);
  }
}

void PairProducts::add_row_to_value(int64_t key, const float* row) {
  float* dv = at<float>(layout_.dv) + key;
  for (int64_t d = 0; d < problem_.value_dim; ++d) {
    dv[d * layout_.keys_stride] += row[d];
  }
}

// Stores gradients [width, keys] as rows of keys.
void PairProducts::store_transposed(const TensorView& gradient, int64_t b, int64_t g, const float* from, int64_t width,
                                    int64_t stride, float factor) const {
  float* rows = at<float>(layout_.stored);
  for (int64_t key = 0; key < keys_; key += kernels_.lanes) {
    const int64_t count = std::min<int64_t>(kernels_.lanes, keys_ - key);
    kernels_.pack_transposed({from + key, DType::kF32, layout_.keys_stride, 1}, width, count, 1.0f, rows, stride);
    store_rows(gradient, b, g, key, count, rows, stride, width, factor);
  }
}

void PairProducts::store(int64_t b, int64_t g) {
  if (call_.arguments.d_k) {
    store_transposed(*call_.arguments.d_k, b, g, at<float>(layout_.dk), problem_.head_dim, call_.d_stride,
                     problem_.scale);
  }
  if (call_.arguments.d_v) {
    store_transposed(*call_.arguments.d_v, b, g, at<float>(layout_.dv), problem_.value_dim, call_.v_stride, 1.0f);
  }
}

}  // namespace flashlift::cpu
