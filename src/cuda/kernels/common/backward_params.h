// The arguments of the backward kernels in addition to those of the forward pass. The host compiler and NVRTC read this
// file.
#pragma once

#include "cuda/kernels/common/forward_params.h"

namespace flashlift::cuda {

// Where the gradient of a captured tensor is summed, with the logical sizes of the tensor.
struct CaptureGradient {
  // Of each element an exact sum (exact_sum.h), or an f32 number that one thread writes. Null: not wanted.
  void* sums;
  int exact;
  int sizes[8];
  long long strides[8];  // in elements
};

// The sums of a load's elements in shared memory (block_sums.cuh).
struct ElementTable {
  int elements;                   // that a block may read
  unsigned bits;                  // eight for each word of an element; 0: there are too many elements
  int copies;                     // of the words, a power of two
  int element_bytes, word_bytes;  // from an element, or a word, to the next
};

// A load of a captured tensor at positions that are queries and keys themselves (see sm80/backward_captures.cu).
struct PlaneLoad {
  int load;     // among those of the generated code
  int batches;  // that have elements of their own: all or 1
  int heads;
  int key_tiles;  // of a block of Hopper's kernel
};

// Which kernel counts with which of RowTiles::next_block. Fused ones and those for keys have the first. kLeftKeys: how
// many key tiles have been left, and not resumed (sm90/key_rings.cuh).
enum Counter { kNextKeys, kNextValues, kNextQueries, kLeftKeys, kCounters };

// The statistics of a row in the backward pass: p = e^(score - shift) * factor, d_score = p * (d_p - delta).
struct alignas(16) RowGradient {
  float shift;
  float factor;  // 0 for rows without keys
  float delta;   // sum of p * d_p, less d_lse
  int empty;     // has the row no key and no sink
};

// The same for kernels that copy whole tiles of rows at once: p = e^score / e^lse. Every query head has q_len / rows
// tiles, rounded up, and one more tile without rows. A tile has first the rows' lse, in the unit of exponentials
// (kExponentUnit: powers of two for 16-bit problems), then their deltas. A row without keys, or after the end, has an
// lse of +inf and a delta of 0, so that its p are 0.
struct RowTiles {
  float* statistics;  // [batch * q_heads][tiles][2][rows]
  // These two are cleared before the preprocess, where anyone asks for them.
  // Becomes 1 if the lse of some row is so large (kLargestOffset, in that unit) that its rounding shows in the row's p.
  // Such rows are nearly always ones of equal, huge scores: they need their maximum and their sum apart.
  // Also if it is NaN, and the row may only be one without keys (`empty_rows=nan`): its scores tell.
  int* any_large;
  int* any_empty;  // becomes 1 if some row has no keys
  // What rounding took from the output (residual.cuh), with the output's strides; null: unknown. The preprocess reads
  // it.
  const void* out_residual;
  // The preprocess clears the integers, `cleared` of them from next_block on. Of the fused kernels, but for next_block.
  int* next_block;      // [kCounters]: tiles of keys or queries that blocks have taken
  int* nonfinite_keys;  // becomes 1 if some key has elements that are not finite, where a mask may hide it
  // Of each part of d_q: which key tile has added to it last, plus one; -1 if the part is in d_q already.
  int* last_adders;
  // Of each key tile that is in a ring, by the index that blocks take: how many parts of it have been added, if a block
  // has left it, and behind those the decisions of rings (sm90/key_rings.cuh).
  int* left_keys;
  float* d_q_sums;  // [batch * q_heads][tiles], and of each what the kernel makes of it
  int rows;         // of a tile
  int tiles;        // of a query head, the one for no rows included
  int cleared;
  int vector_out;  // rows of out and d_out are contiguous and begin at multiples of 16 bytes
};

struct BackwardParams {
  // Of the inputs' type. Where out is of another, and 16 bits may not hold it: its upper half, and what that leaves;
  // *d_out_has_low says whether anything was left.
  const void* d_out;
  void* d_out_low;
  int* d_out_has_low;
  const void* given_d_out;  // of out's type
  const float* d_lse;       // null: no gradient

  // Null unless wanted.
  void* d_q;
  void* d_k;
  void* d_v;
  float* d_sinks;

  RowGradient* rows;  // [batch, q_heads, q_len]

  Strides d_out_strides;
  Strides given_d_out_strides;
  Strides d_q_strides;
  Strides d_k_strides;
  Strides d_v_strides;
  long long d_lse_strides[3];
  long long d_sink_strides[2];  // of heads (0: all heads share them) and sinks

  // Flags of which one must be set for the portable kernels to do anything; null: none, and where both are, they always
  // do.
  const int* only_if[2];

  int vector_d_out;  // its rows are contiguous and begin at multiples of 16 bytes
  // Its columns are neighbours, and every pair of them begins at a multiple of its size.
  int paired_d_q;
  int paired_d_k;
  int paired_d_v;
  int vector_d_q;  // its rows are contiguous and begin at multiples of 16 bytes
  int vector_d_k;
  int vector_d_v;
  int kv_tiles;       // of the kernel that works on keys
  int ring_tiles;     // key tiles of a ring (sm90/key_rings.cuh)
  int ring_distance;  // of tiles of 128 queries: KeyRing::distance (key_ring.h)
  int stores_final;   // may the fused kernel store parts of d_q that are final
  // Of Hopper's fused kernels: how many of all key-value heads, from the first one on, are mirrored
  // (sm90/backward_fused.cu).
  int mirrored_heads;

#if FL_CAPTURE_COUNT > 0
  CaptureGradient gradients[FL_CAPTURE_COUNT];
#endif
};

}  // namespace flashlift::cuda
