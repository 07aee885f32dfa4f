#include "cpu/backward_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/views.h"
#include "support/rounding.h"

namespace flashlift::cpu {

BackwardProducts::BackwardProducts(const BackwardCall& call, int64_t chunk, const ChunkLayout& layout,
                                   const WorkerMemory& memory)
    : call_(call),
      problem_(call.problem()),
      kernels_(call.kernels()),
      layout_(layout),
      memory_(memory),
      kv_tile_(call.kernel.config().kv_tile),
      kv_begin_(chunk * call.kv_chunk),
      keys_(std::min(call.kv_chunk, call.sizes.kv_len - kv_begin_)),
      blocks_(divide_up(std::max<int64_t>(keys_, 0), kv_tile_)),
      d_panel_count_(value_panels(problem_.head_dim, kernels_, d_panels_)),
      v_panel_count_(value_panels(problem_.value_dim, kernels_, v_panels_)) {}

void BackwardProducts::store_rows(const TensorView& gradient, int64_t b, int64_t g, int64_t key, int64_t count,
                                  const float* from, int64_t stride, int64_t width, float factor) const {
  for (int64_t j = 0; j < count; ++j) {
    const int64_t offset =
        b * gradient.strides[0] + g * gradient.strides[1] + (kv_begin_ + key + j) * gradient.strides[2];
    std::byte* to =
        static_cast<std::byte*>(gradient.data) + offset * static_cast<int64_t>(size_in_bytes(gradient.dtype));
    kernels_.store_row(from + j * stride, width, factor, to, gradient.dtype, gradient.strides[3]);
  }
}

// Packs keys into panels of depth `depth`, as the second operand of <q, k> and <d_out, v>.
void F32Products::pack_transposed(const TensorView& tensor, int64_t b, int64_t g, int64_t row, int64_t rows,
                                  int64_t depth, float* to) const {
  for (int64_t c = 0; c < rows; c += kernels_.panel_width) {
    const int64_t keys = std::min<int64_t>(kernels_.panel_width, rows - c);
    const int64_t padded = round_up(keys, kernels_.lanes);
    kernels_.pack_transposed(head_rows(tensor, b, g, row + c), keys, depth, 1.0f, to, padded);
    to += padded * depth;
  }
}

// Packs rows into panels. Returns whether all elements are finite.
bool F32Products::pack_panels(const MatrixView& from, int64_t rows, int64_t width, const Panel* panels, int panel_count,
                              float scale, float* to) const {
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

void F32Products::begin(int64_t b, int64_t g) {
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t first = block * kv_tile_;
    pack_transposed(call_.forward().k, b, g, kv_begin_ + first, columns_of(block), problem_.head_dim,
                    at<float>(layout_.kt) + first * problem_.head_dim);
    pack_transposed(call_.forward().v, b, g, kv_begin_ + first, columns_of(block), problem_.value_dim,
                    at<float>(layout_.vt) + first * problem_.value_dim);
  }
  const float* panels = at<float>(layout_.k);
  const bool finite = pack_panels(head_rows(call_.forward().k, b, g, kv_begin_), keys_, problem_.head_dim, d_panels_,
                                  d_panel_count_, 1.0f, at<float>(layout_.k));
  for (int64_t block = 0; block < blocks_; ++block) {
    keys_finite_[block] = true;
    for (int i = 0; !finite && i < d_panel_count_; ++i) {
      const int64_t width = d_panels_[i].vectors * kernels_.lanes;
      const float* from = panels + d_panels_[i].begin * keys_ + block * kv_tile_ * width;
      keys_finite_[block] = kernels_.all_finite(from, columns_of(block) * width) && keys_finite_[block];
    }
  }
  std::memset(at<float>(layout_.dk), 0, static_cast<size_t>(keys_ * call_.d_stride) * sizeof(float));
  std::memset(at<float>(layout_.dv), 0, static_cast<size_t>(keys_ * call_.v_stride) * sizeof(float));
}

F32Products::Operand F32Products::load_operand(const MatrixView& from, int64_t rows, int64_t width, const Panel* panels,
                                               int panel_count, float scale, size_t panels_at, size_t rows_at) const {
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

void F32Products::load(int64_t b, int64_t h, int64_t q_begin, int64_t rows) {
  rows_ = rows;
  q_ = load_operand(head_rows(call_.forward().q, b, h, q_begin), rows, problem_.head_dim, d_panels_, d_panel_count_,
                    1.0f, layout_.q, layout_.q_rows);
  d_out_ = load_operand(head_rows(call_.arguments.d_out, b, h, q_begin), rows, problem_.value_dim, v_panels_,
                        v_panel_count_, call_.dropout.factor, layout_.d_out, layout_.d_out_rows);
}

// C = A B^T for the keys of a part.
void F32Products::multiply_keys(const Operand& a, const ScorePart& part, int64_t depth, const float* panels, float* c) {
  panels += part.key * depth;
  for (int64_t first = 0; first < part.columns; first += kernels_.panel_width) {
    const int64_t padded = round_up(std::min<int64_t>(kernels_.panel_width, part.columns - first), kernels_.lanes);
    kernels_.multiply(part.rows, static_cast<int>(padded / kernels_.lanes), depth, a.rows + part.row * a.stride,
                      a.stride, panels, padded, c + first, layout_.s_stride, false, prefetches);
    panels += padded * depth;
  }
}

void F32Products::multiply(const ScorePart& part, float* s, float* dp) {
  multiply_keys(q_, part, problem_.head_dim, at<float>(layout_.kt), s);
  multiply_keys(d_out_, part, problem_.value_dim, at<float>(layout_.vt), dp);
}

// C += coefficients^T B.
void F32Products::add_transposed(const float* coefficients, const ScorePart& part, const Operand& b,
                                 const Panel* panels, int panel_count, float* c, int64_t c_stride) {
  for (int i = 0; i < panel_count; ++i) {
    const int64_t width = panels[i].vectors * kernels_.lanes;
    const float* panel = b.panels + panels[i].begin * rows_ + part.row * width;
    float* to = c + part.key * c_stride + panels[i].begin;
    if (b.finite) {
      kernels_.multiply_transposed(part.columns, panels[i].vectors, part.rows, coefficients, layout_.s_stride, panel,
                                   width, to, c_stride, prefetches);
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

void F32Products::add_to_values(const ScorePart& part, const float* p) {
  add_transposed(p, part, d_out_, v_panels_, v_panel_count_, at<float>(layout_.dv), call_.v_stride);
}

void F32Products::add_to_keys(const ScorePart& part, const float* ds) {
  add_transposed(ds, part, q_, d_panels_, d_panel_count_, at<float>(layout_.dk), call_.d_stride);
}

void F32Products::add_to_queries(const ScorePart& part, const float* ds, float* dq) {
  for (int i = 0; i < d_panel_count_; ++i) {
    const int64_t width = d_panels_[i].vectors * kernels_.lanes;
    const float* panel = at<float>(layout_.k) + d_panels_[i].begin * keys_ + part.key * width;
    float* to = dq + part.row * call_.d_stride + d_panels_[i].begin;
    if (keys_finite_[part.key / kv_tile_]) {
      kernels_.multiply(part.rows, d_panels_[i].vectors, part.columns, ds, layout_.s_stride, panel, width, to,
                        call_.d_stride, true, prefetches);
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

void F32Products::add_row_to_value(int64_t key, const float* row) {
  float* dv = at<float>(layout_.dv) + key * call_.v_stride;
  for (int64_t d = 0; d < problem_.value_dim; ++d) {
    dv[d] += row[d];
  }
}

void F32Products::store(int64_t b, int64_t g) {
  if (call_.arguments.d_k) {
    store_rows(*call_.arguments.d_k, b, g, 0, keys_, at<float>(layout_.dk), call_.d_stride, problem_.head_dim,
               problem_.scale);
  }
  if (call_.arguments.d_v) {
    store_rows(*call_.arguments.d_v, b, g, 0, keys_, at<float>(layout_.dv), call_.v_stride, problem_.value_dim, 1.0f);
  }
}

}  // namespace flashlift::cpu
