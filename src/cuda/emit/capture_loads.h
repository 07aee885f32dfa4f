// How the kernels of kernels/sm80/backward_captures.cu sum the gradients of captured tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flashlift/problem.h"
#include "score/derivative.h"

namespace flashlift::cuda {

// Over which scores a thread or a warp sums before it adds to the gradient.
enum class CaptureSum : uint8_t {
  kRow,       // one element for all keys of a row: the row's scores
  kKey,       // one element for all queries of a head: the key's scores
  kDiagonal,  // the indices depend on the distance of query and key only: a diagonal of a block's scores
  kElement,   // other indices: a thread's scores that have the same element one after the other
  kPlane,     // the indices have the query and the key themselves: the scores of all heads that share the element
};

// A load whose gradient a call requests.
struct CaptureLoad {
  size_t capture = 0;  // into problem.captures
  CaptureSum sum = CaptureSum::kElement;
  // It sums, or may sum, the gradients of all scores of a row. Such a sum is nearly 0 if the scores' weights are nearly
  // the same for all keys: only <d_out, out> from the same products gives it
  // (kernels/sm80/backward_rows.cuh). From the output of the forward pass, whose probabilities are rounded to 16 bits,
  // a gradient of `t[q] * t[kv]` was 2.4 times as far from the exact one as the limit.
  bool cancels = false;
  // Elements and diagonals only. Bit d: the index of dimension d may differ among the scores of a head.
  uint32_t moves = 0;
  int table = -1;  // elements only: which of the block's tables in shared memory sums them (block_sums.cuh); -1: none
  // Planes only: the tensor's dimensions that the position indexes; -1: none.
  int b_dim = -1;
  int h_dim = -1;
  int q_dim = -1;
  int kv_dim = -1;
};

// The tables of a block divide at most so many bytes equally. With fewer words for an element, there is no room beside
// those that receive carries.
inline constexpr int64_t kMostTableBytes = 32 << 10;
inline constexpr int64_t kLeastTableWords = 6;
inline constexpr int kMostElementTables = 8;
// How many loads have one.
int element_tables(const std::vector<CaptureLoad>& loads);

// In the order of derivative.loads. At most one is a kDiagonal: the kernel has room for the scores of one.
std::vector<CaptureLoad> capture_loads(const Problem& problem, const score::Derivative& derivative);

// wants_gradient: of which captured tensors (in the order of problem.captures).
std::vector<CaptureLoad> capture_loads(const Problem& problem, const std::vector<bool>& wants_gradient);

}  // namespace flashlift::cuda
