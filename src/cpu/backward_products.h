// The five products of the backward pass: a chunk of keys against query tiles in sequence. There are two
// implementations of this interface: f32 products, whose operands are widened when they are packed, and products of
// bf16 operands with f32 sums, if the processor has fast ones.
#pragma once

#include "cpu/backward_call.h"
#include "cpu/forward_tile.h"
#include "cpu/tile/pairs.h"

namespace flashlift::cpu {

// Part of a tile's scores: rows of the tile, and keys of the chunk from a whole panel on.
struct ScorePart {
  int64_t row;
  int64_t rows;
  int64_t key;
  int64_t columns;
  bool partial;
};

// The tile's scores, p and ds are in rows of ChunkLayout::s_stride floats. p and ds are 0 from the end of a part's
// columns up to the next whole vector.
class BackwardProducts {
 public:
  BackwardProducts(const BackwardCall& call, int64_t chunk, const ChunkLayout& layout, const WorkerMemory& memory);
  virtual ~BackwardProducts() = default;
  BackwardProducts(const BackwardProducts&) = delete;
  BackwardProducts& operator=(const BackwardProducts&) = delete;

  // Packs the chunk's keys and values of key-value head (b, g), and sets the sums of their gradients to 0.
  virtual void begin(int64_t b, int64_t g) = 0;
  // Loads the tile of queries for the functions below.
  virtual void load(int64_t b, int64_t h, int64_t q_begin, int64_t rows) = 0;
  // s = <q, k>, dp = <d_out, v>.
  virtual void multiply(const ScorePart& part, float* s, float* dp) = 0;
  // d_v += p^T d_out, d_k += ds^T q, dq += ds k. Terms with p = 0 or ds = 0 do not contribute, even if the other factor
  // is infinite or NaN.
  virtual void add_to_values(const ScorePart& part, const float* p) = 0;
  virtual void add_to_keys(const ScorePart& part, const float* ds) = 0;
  virtual void add_to_queries(const ScorePart& part, const float* ds, float* dq) = 0;
  // Adds a row of d_out times a factor to one key's d_v.
  virtual void add_row_to_value(int64_t key, const float* row) = 0;
  // Writes d_k and d_v, if requested.
  virtual void store(int64_t b, int64_t g) = 0;

  int64_t kv_begin() const { return kv_begin_; }
  int64_t keys() const { return keys_; }
  int64_t blocks() const { return blocks_; }
  int64_t columns_of(int64_t block) const { return std::min(kv_tile_, keys_ - block * kv_tile_); }
  const TileKernels& kernels() const { return kernels_; }

  PrefetchQueue prefetches;  // data that the products prefetch

 protected:
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_.tiles + offset);
  }
  void store_rows(const TensorView& gradient, int64_t b, int64_t g, int64_t key, int64_t count, const float* from,
                  int64_t stride, int64_t width, float factor) const;

  const BackwardCall& call_;
  const Problem& problem_;
  const TileKernels& kernels_;
  const ChunkLayout& layout_;
  const WorkerMemory& memory_;
  int64_t kv_tile_;
  int64_t kv_begin_;
  int64_t keys_;    // of the chunk
  int64_t blocks_;  // tiles of keys
  Panel d_panels_[32];
  Panel v_panels_[32];
  int d_panel_count_;
  int v_panel_count_;
  bool keys_finite_[kMaxBlocks] = {};
};

class F32Products final : public BackwardProducts {
 public:
  using BackwardProducts::BackwardProducts;

  void begin(int64_t b, int64_t g) override;
  void load(int64_t b, int64_t h, int64_t q_begin, int64_t rows) override;
  void multiply(const ScorePart& part, float* s, float* dp) override;
  void add_to_values(const ScorePart& part, const float* p) override;
  void add_to_keys(const ScorePart& part, const float* ds) override;
  void add_to_queries(const ScorePart& part, const float* ds, float* dq) override;
  void add_row_to_value(int64_t key, const float* row) override;
  void store(int64_t b, int64_t g) override;

 private:
  // A tile of q or d_out: as the second operand of a product, in panels, and as its first, rows of `stride` floats.
  struct Operand {
    const float* panels = nullptr;
    const float* rows = nullptr;
    int64_t stride = 0;
    bool finite = true;
  };

  void pack_transposed(const TensorView& tensor, int64_t b, int64_t g, int64_t row, int64_t rows, int64_t depth,
                       float* to) const;
  bool pack_panels(const MatrixView& from, int64_t rows, int64_t width, const Panel* panels, int panel_count,
                   float scale, float* to) const;
  Operand load_operand(const MatrixView& from, int64_t rows, int64_t width, const Panel* panels, int panel_count,
                       float scale, size_t panels_at, size_t rows_at) const;
  void multiply_keys(const Operand& a, const ScorePart& part, int64_t depth, const float* panels, float* c);
  void add_transposed(const float* coefficients, const ScorePart& part, const Operand& b, const Panel* panels,
                      int panel_count, float* c, int64_t c_stride);

  int64_t rows_ = 0;  // of the tile
  Operand q_;
  Operand d_out_;
};

// Rows of d_out as operands of bf16 products, each followed by zeros up to `stride`: unchanged, or as the sum of two
// bf16 numbers (PairKernels::split) if they have another dtype. Returns whether some second part is not 0. `row` is
// memory for `stride` floats.
bool load_pair_rows(const TileKernels& kernels, const MatrixView& from, int64_t rows, int64_t width, int64_t stride,
                    Bf16* high, Bf16* low, float* row);

// d_k and d_v are summed as their transposes, d_out^T p and q^T ds. p and ds, rounded to bf16, are the second operands,
// whose packing in pairs of rows needs no transposition. The first operands are transposed once per tile.
//
// A d_out of another dtype (that of the output) is used as the sum of two bf16 numbers. If d_out was computed in bf16,
// the second number is 0 and is skipped.
class PairProducts final : public BackwardProducts {
 public:
  PairProducts(const BackwardCall& call, int64_t chunk, const ChunkLayout& layout, const WorkerMemory& memory);

  void begin(int64_t b, int64_t g) override;
  void load(int64_t b, int64_t h, int64_t q_begin, int64_t rows) override;
  void multiply(const ScorePart& part, float* s, float* dp) override;
  void add_to_values(const ScorePart& part, const float* p) override;
  void add_to_keys(const ScorePart& part, const float* ds) override;
  void add_to_queries(const ScorePart& part, const float* ds, float* dq) override;
  void add_row_to_value(int64_t key, const float* row) override;
  void store(int64_t b, int64_t g) override;

 private:
  int64_t padded(int64_t depth) const;
  void pack_columns(const float* coefficients, const ScorePart& part);
  void multiply_keys(const Bf16* a, const ScorePart& part, int64_t depth, const Bf16* panels, float* c,
                     bool accumulate);
  void add_transposed(const Bf16* a, int64_t a_rows, const ScorePart& part, float* c);
  void add_elements(const float* coefficients, const ScorePart& part, const MatrixView& b, int64_t width, float* c);
  void store_transposed(const TensorView& gradient, int64_t b, int64_t g, const float* from, int64_t width,
                        int64_t stride, float factor) const;

  const PairKernels& pairs_;
  MatrixView q_view_;  // of the tile
  MatrixView d_out_view_;
  bool q_finite_ = true;
  bool d_out_finite_ = true;
  bool has_low_ = false;  // d_out has a second part
};

}  // namespace flashlift::cpu
