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
};

// Composes the features with the programs that the problem already has: softcap, then ALiBi, then the problem's own
// score_mod; all masks must keep a key. Fills Problem::captures.
Status apply_features(const Features& features, Problem& problem);

}  // namespace flashlift::problem
