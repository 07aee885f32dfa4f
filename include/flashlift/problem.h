// An attention problem: the shapes, types, programs and options that a kernel is compiled for.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/program.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

// The output of a query row that has no key left (and no sink).
enum class EmptyRows : uint8_t {
  kZero,     // 0, lse = -inf (FlexAttention, GoMLX)
  kUniform,  // the mean of all values (a large negative finite constant added as a mask)
  kNan,      // NaN (softmax over -inf)
};
const char* to_string(EmptyRows rows);

// softmax(score_mod(scale * q k^T) where mask_mod) v. See docs/design.md, "What one attention is".
struct Problem {
  int64_t batch = 1;
  int64_t q_heads = 1;  // a multiple of kv_heads; query head h reads key-value head h * kv_heads / q_heads
  int64_t kv_heads = 1;
  int64_t q_len = 1;
  int64_t kv_len = 1;
  int64_t head_dim = 64;   // of q and k: 1 to 256
  int64_t value_dim = 64;  // of v and the output: 1 to 256

  DType dtype = DType::kF32;      // of q, k, v: f32, bf16 or f16
  DType out_dtype = DType::kF32;  // of the output: f32, bf16 or f16
  // True: d_out, the output gradient that a backward pass reads, has dtype `dtype`. False: it has `out_dtype`.
  bool d_out_like_inputs = false;
  float scale = 1.0f;  // multiplies <q, k> before score_mod

  std::optional<Program> score_mod = {};
  std::optional<Program> mask_mod = {};
  // The tensors that the programs read, each once: collect_captures(score_mod, mask_mod).
  std::vector<Capture> captures = {};

  int64_t sinks = 0;  // sink logits per query head: an f32 tensor [q_heads, sinks], or [sinks], beside the captures
  EmptyRows empty_rows = EmptyRows::kZero;
  bool want_lse = false;      // f32 [batch, q_heads, q_len]
  bool want_row_max = false;  // f32 [batch, q_heads, q_len]: the largest score without sinks; -inf without a key
  // The rounding error of out, in one byte. With it, a backward pass is as exact as with an f32 output.
  bool want_residual = false;
  bool normalize = true;  // false: the output is not divided by the row sum
  // False: d_q may have other bits in each call, where that is faster. Everything else has the same bits in any case.
  bool deterministic = true;

  // The probability, 0 to below 1, that an output row drops a key; kept keys are divided by 1 - dropout. The row sum
  // and lse are those without dropout. The kept keys depend on the call's seed and (b, h, q, kv) alone: see
  // docs/problem.md.
  float dropout = 0.0f;
  // Each call gives the kept keys in a tensor instead of a seed. `dropout` is then only the rate, and may be 0.
  bool keep_mask = false;
  // Each call gives the seed in a tensor on its own device, for a seed that was computed there.
  bool dropout_words = false;

  // Keys per page; 0: k and v are not paged. Paged k and v are [pages, kv_heads, page_size, dim], and key `kv` of batch
  // b is row kv % page_size of page page_table[b, kv / page_size].
  int64_t page_size = 0;

  bool drops_keys() const { return dropout > 0 || keep_mask; }
  DType d_out_dtype() const { return d_out_like_inputs ? dtype : out_dtype; }
};

// The tensors of one call. Logical orders, whatever the strides:
//   q [batch, q_heads, q_len, head_dim]     k [batch, kv_heads, kv_len, head_dim]
//   v [batch, kv_heads, kv_len, value_dim]  out [batch, q_heads, q_len, value_dim]
// The last dimension may have any stride, too. No output may share memory with an input or another output. Paged: k
// [pages, kv_heads, page_size, head_dim], v likewise, and kv_len is the page table's width times page_size.
struct AttentionArguments {
  TensorView q;
  TensorView k;
  TensorView v;
  TensorView out;
  std::vector<TensorView> captures = {};    // in the order of Problem::captures
  std::optional<TensorView> sinks = {};     // f32 [q_heads, sinks], or [sinks] for all heads, if Problem::sinks > 0
  std::optional<TensorView> lse = {};       // f32 [batch, q_heads, q_len], if Problem::want_lse
  std::optional<TensorView> row_max = {};   // f32 [batch, q_heads, q_len], if Problem::want_row_max
  std::optional<TensorView> residual = {};  // i8 of out's shape and strides, if Problem::want_residual
  // i32 [batch, pages of a sequence], if Problem::page_size > 0. Entries of masked keys may hold anything.
  std::optional<TensorView> page_table = {};
  uint64_t dropout_seed = 0;  // another seed, other keys; unused without dropout, or with a keep mask
  // The batch and the query head that dropout uses for the call's first ones. With them, a call that is a part of a
  // larger one, such as a device's share, keeps the same keys as the larger call.
  std::array<int64_t, 2> dropout_origin{};
  // Replaces both, if Problem::dropout_words: dense u32 [2], the seed's low and high half, or [4], followed by the
  // origin.
  std::optional<TensorView> dropout_words = {};
  // bool [batch, q_heads, q_len, kv_len], where each size may be 1 instead, if Problem::keep_mask: the keys that stay.
  std::optional<TensorView> keep_mask = {};
};

// The number of keys of a call: that of k, or the capacity of the page table.
int64_t kv_length(const Problem& problem, const AttentionArguments& arguments);

// Checks a problem by itself: ranges, types, programs, capture names.
Status verify(const Problem& problem);
// Checks that the arguments of a call match the problem, which verify(problem) accepts. A size `?` of a captured tensor
// matches any size; named sizes must be the call's.
Status verify(const Problem& problem, const AttentionArguments& arguments);
// The part of this check that concerns the captured tensors, for a call of the problem's own lengths.
Status verify_captures(const Problem& problem, std::span<const TensorView> captures);

// The captured tensors of both programs, score_mod's first: what Problem::captures must be.
// Errors: both declare the same name differently.
Result<std::vector<Capture>> collect_captures(const std::optional<Program>& score_mod,
                                              const std::optional<Program>& mask_mod);

// The one-line text form, used alike by the command line, tests, benchmarks and bug reports:
//   attn b2 hq32 hkv8 sq4096 skv4096 d128 bf16 causal softcap=30
// docs/problem.md lists the words. Named features become programs; programs in their text form stand at the end.
// Errors: kInvalidArgument for a word that is unknown, given twice, or has a value that it does not accept.
Result<Problem> parse_problem(std::string_view text);
// Prints every field, and named features as their programs; parse_problem(print(p)) is p.
std::string print(const Problem& problem);

}  // namespace flashlift

#pragma GCC visibility pop
