// Named features as score and mask programs: what a backend sees of "causal" or "softcap" is a program.
#pragma once

#include <cstdint>
#include <optional>

#include "flashlift/problem.h"

namespace flashlift::problem {

struct Features {
  bool causal = false;                  // kv <= q
  bool bottom_right = false;            // causal and window count from the bottom right corner: q + kv_len - q_len
  std::optional<int64_t> window_left;   // kv >= q - window_left
  std::optional<int64_t> window_right;  // kv <= q + window_right
  std::optional<int64_t> prefix;        // keys below it are kept whatever causal and window say
  std::optional<int64_t> documents;     // this many documents of equal length
  std::optional<float> softcap;
  bool alibi = false;
  bool segment_ids = false;  // captured q_segments and kv_segments, i32 [batch, length]: equal ones see each other
  bool key_lengths = false;  // captured key_lengths, i32 [batch]; bottom right is then the end of each sequence
  // Sequences packed one after the other, by captured cu_seqlens_q and cu_seqlens_kv, i32 [n]: sequence i has queries
  // cu_seqlens_q[i] to cu_seqlens_q[i + 1] and keys likewise, and causal, window, prefix and ALiBi count within it.
  bool cu_seqlens = false;
  std::optional<DType> mask;    // captured mask [batch, heads, queries, keys]: bool, or i32 (0 masks)
  std::optional<DType> bias;    // captured bias, likewise, added to the score: f32, bf16 or f16
  std::optional<DType> logits;  // scores rounded to bf16 or f16 before anything else
};

// Composes the features with the programs that the problem already has: rounding of logits, softcap, ALiBi, bias, then
// the problem's own score_mod; all masks must keep a key. Fills Problem::captures.
Status apply_features(const Features& features, Problem& problem);

}  // namespace flashlift::problem
