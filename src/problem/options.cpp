#include "problem/options.h"

#include <fmt/format.h>

namespace flashlift::problem {
namespace {

using Text = std::optional<std::string>;

// The value of an option that is only a word.
Text flag(bool given) { return given ? Text("") : std::nullopt; }

Text number_unless_zero(auto number) { return number > 0 ? Text(fmt::format("{}", number)) : std::nullopt; }

// In the order of print() and of the documentation.
constexpr Option kOptions[] = {
    {.word =
         {.name = "out", .value = one_of("f32|bf16|f16"), .doc = "dtype of the output", .without = "that of q, k, v"},
     .set = [](Problem& p, const Given& given) { p.out_dtype = given.dtype(); },
     .value_in = [](const Problem& p) { return p.out_dtype == p.dtype ? Text() : Text(to_string(p.out_dtype)); }},
    {.word = {.name = "d_out",
              .value = one_of("output|inputs"),
              .doc = "dtype of d_out, the gradient that a backward pass takes: that of the output, or that of q, k, v",
              .without = "`output`"},
     .set = [](Problem& p, const Given& given) { p.d_out_like_inputs = given.choice == 1; },
     .value_in = [](const Problem& p) { return p.d_out_like_inputs ? Text("inputs") : Text(); }},
    {.word = {.name = "scale",
              .value = finite_number(),
              .examples = "0.125",
              .doc = "factor of ⟨q, k⟩",
              .without = "1/√head dimension"},
     .set = [](Problem& p, const Given& given) { p.scale = given.real; },
     .value_in = [](const Problem& p) { return Text(fmt::format("{}", p.scale)); }},
    {.word = {.name = "sinks",
              .value = whole_number(0),
              .examples = "1",
              .doc = "sink logits of each head: a tensor f32 [q_heads, N], or [N] for all heads",
              .without = "none"},
     .set = [](Problem& p, const Given& given) { p.sinks = given.whole; },
     .value_in = [](const Problem& p) { return number_unless_zero(p.sinks); }},
    {.word = {.name = "empty_rows",
              .value = one_of("zero|uniform|nan"),
              .doc =
                  "output of a query without keys: zero, the mean of all values, or NaN; with finite sinks it is zero",
              .without = "`zero`"},
     .set =
         [](Problem& p, const Given& given) {
           constexpr EmptyRows kRows[] = {EmptyRows::kZero, EmptyRows::kUniform, EmptyRows::kNan};
           p.empty_rows = kRows[given.choice];
         },
     .value_in =
         [](const Problem& p) { return p.empty_rows == EmptyRows::kZero ? Text() : Text(to_string(p.empty_rows)); }},
    {.word = {.name = "lse",
              .doc =
                  "also return the logarithm of each row's sum of exponentials, sinks included: f32 [batch, q_heads, "
                  "q_len]; without keys and sinks -inf, or NaN with `empty_rows=nan`"},
     .set = [](Problem& p, const Given&) { p.want_lse = true; },
     .value_in = [](const Problem& p) { return flag(p.want_lse); }},
    {.word = {.name = "row_max",
              .doc = "also return each row's largest score, without sinks: f32 [batch, q_heads, q_len]; -inf without "
                     "keys"},
     .set = [](Problem& p, const Given&) { p.want_row_max = true; },
     .value_in = [](const Problem& p) { return flag(p.want_row_max); }},
    {.word =
         {.name = "residual",
          .doc = "also return the output's rounding error to 16 bits, int8 in the output's shape; the backward pass on "
                 "GPUs then needs fewer products"},
     .set = [](Problem& p, const Given&) { p.want_residual = true; },
     .value_in = [](const Problem& p) { return flag(p.want_residual); }},
    {.word = {.name = "nondeterministic",
              .doc = "the gradient of q may have other bits in each call, where that is faster: for long sequences on "
                     "Hopper GPUs, up to 192 columns"},
     .set = [](Problem& p, const Given&) { p.deterministic = false; },
     .value_in = [](const Problem& p) { return flag(!p.deterministic); }},
    {.word =
         {.name = "unnormalized",
          .doc =
              "do not divide the output by the row's sum of exponentials; `empty_rows=uniform` then gives the sum of "
              "all values"},
     .set = [](Problem& p, const Given&) { p.normalize = false; },
     .value_in = [](const Problem& p) { return flag(!p.normalize); }},
    {.word =
         {.name = "dropout",
          .value = probability(),
          .examples = "0.1",
          .doc = "drop each key of a row with probability p, and divide the others by 1 − p (docs/problem.md, Dropout)",
          .without = "0"},
     .set = [](Problem& p, const Given& given) { p.dropout = given.real; },
     .value_in = [](const Problem& p) { return number_unless_zero(p.dropout); }},
    {.word = {.name = "keep_mask",
              .doc = "each call gives the keys that dropout keeps, in a bool tensor (docs/problem.md, Dropout)"},
     .set = [](Problem& p, const Given&) { p.keep_mask = true; },
     .value_in = [](const Problem& p) { return flag(p.keep_mask); }},
    {.word = {.name = "dropout_words", .doc = "each call gives dropout's seed in a tensor (docs/problem.md, Dropout)"},
     .set = [](Problem& p, const Given&) { p.dropout_words = true; },
     .value_in = [](const Problem& p) { return flag(p.dropout_words); }},
    {.word = {.name = "page_size",
              .value = whole_number(1),
              .examples = "16",
              .doc = "k and v lie in pages of N keys (docs/problem.md, Pages)"},
     .set = [](Problem& p, const Given& given) { p.page_size = given.whole; },
     .value_in = [](const Problem& p) { return number_unless_zero(p.page_size); }},
};

}  // namespace

std::span<const Option> options() { return kOptions; }

}  // namespace flashlift::problem
