// Sums along the diagonals of scores, for gradients of captured tensors whose indices depend on the distance of query and
// key only.
#pragma once

#include "cuda/kernels/common/rows.cuh"
#include "gradient.cuh"

#if FL_DIAGONAL_GRADIENTS

namespace flashlift::cuda {

// The diagonals of kRows queries, which kThreads threads (a power of two) process together, 16 queries in a warp. Each
// diagonal has one thread, which keeps the sum in a register until the key tiles leave the diagonal.
template <int kRows, int kThreads>
class Diagonals {
 public:
  // Of the scores in shared memory: a warp's rows 8 to 15 are added to its rows 0 to 7, 8 columns before.
  static constexpr int kColumns = FL_BLOCK_N + 8;
  static constexpr int kStoredRows = kRows / 2;
  static constexpr int kElements = kStoredRows * kColumns;

  // first_row: the first query. sums: kElements numbers in shared memory.
  __device__ __forceinline__ Diagonals(const ForwardParams& params, const BackwardParams& backward, int b, int h,
                                       int first_row, float* sums)
      : params_(params), backward_(backward), b_(b), h_(h), first_row_(first_row), sums_(sums) {}

  // Adds a thread's gradients of the key tile that begins with kv. sync(): a barrier of these threads. The threads must
  // synchronise before the next call, too.
  template <typename Sync>
  __device__ __forceinline__ void add(const float (&values)[FL_BLOCK_N / 2], int kv, const Sync& sync) {
    static_assert(kThreads >= kRows + FL_BLOCK_N - 1 && (kThreads & (kThreads - 1)) == 0,
                  "each diagonal needs a thread of its own");
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    const int lane = thread % 32;
    float* const row = sums_ + (thread / 32 * 8 + lane / 4) * kColumns + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j <= FL_BLOCK_N / 8; ++j) {  // columns 8j - 8 and 8j - 7 of the upper row
      float sum[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float upper = j > 0 ? values[4 * j - 4 + c] : 0.0f;
        const float lower = j < FL_BLOCK_N / 8 ? values[4 * j + 2 + c] : 0.0f;
        sum[c] = upper + lower;
      }
      *reinterpret_cast<float2*>(row + 8 * j) = make_float2(sum[0], sum[1]);
    }
    sync();
    const int base = kv - first_row_;  // of the first column from the first row
    const int lowest = base - (kRows - 1);
    const int distance = lowest + ((thread - lowest) & (kThreads - 1));
    if (distance >= base + FL_BLOCK_N) {
      return;
    }
    if (distance != distance_) {
      leave_diagonal();
      distance_ = distance;
    }
    const int first_column = distance - base + 8;  // in the first row; may lie outside
#pragma unroll 8
    for (int i = 0; i < kStoredRows; ++i) {
      const int column = first_column + i / 8 * 16 + i % 8;
      sum_ += column >= 0 && column < kColumns ? sums_[i * kColumns + column] : 0.0f;
    }
  }

  // When all tiles have been added. All threads must call it.
  __device__ __forceinline__ void finish() {
    leave_diagonal();
    finish_diagonals(element_, b_, h_, 0, 0, params_, backward_.gradients);
  }

 private:
  __device__ __forceinline__ void leave_diagonal() {
    if (sum_ != 0.0f) {
      add_diagonal(sum_, element_, b_, h_, max(-distance_, 0), max(distance_, 0), params_, backward_.gradients);
    }
    sum_ = 0.0f;
  }

  const ForwardParams& params_;
  const BackwardParams& backward_;
  const int b_;
  const int h_;
  const int first_row_;
  float* const sums_;
  int distance_ = 0;
  float sum_ = 0.0f;
  ElementSum element_{};  // of the diagonals before
};

}  // namespace flashlift::cuda

#endif
