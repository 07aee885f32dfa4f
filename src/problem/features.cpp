#include "problem/features.h"

#include <bit>

namespace flashlift::problem {
namespace {

// Sizes of 1 broadcast, since indices are clamped.
constexpr int64_t kBatch = or_one(kBatchSize);
constexpr std::array<int64_t, 4> kPlane = {kBatch, or_one(kHeadsSize), or_one(kQLenSize), or_one(kKvLenSize)};

// Slopes of the ALiBi paper: 2^(-8 (h + 1) / n) for a power of two n. For other head counts the remaining slopes are
// every second one of twice as many heads.
Expr alibi_slope(Expr h, int64_t heads) {
  const int power = static_cast<int>(std::bit_floor(static_cast<uint64_t>(heads)));
  const Expr first = (h + 1) * (-8.0f / static_cast<float>(power));
  const Expr rest = ((h - power) * 2 + 1) * (-4.0f / static_cast<float>(power));
  return exp2(power == heads ? first : select(h < power, first, rest));
}

int as_int(int64_t whole) { return static_cast<int>(whole); }

// One row for each feature, in the order of the documentation.
constexpr Feature kFeatures[] = {
    {.word = {.name = "causal",
              .value = perhaps("bottom_right"),
              .doc = "keep `kv <= q`, counted from the top left or the bottom right corner"},
     .mask = [](const Place& at, const GivenFeature&) { return at.kv <= at.diagonal; },
     .drawn = {.once_in = 3}},
    {.word = {.name = "window",
              .value = one_or_two_numbers("<left>[,<right>]"),
              .examples = "128 128,0",
              .doc = "keep `q - left <= kv <= q + right`, counted like `causal`; a single number sets both sides"},
     .mask =
         [](const Place& at, const GivenFeature& given) {
           return at.kv >= at.diagonal - as_int(given.value.whole) && at.kv <= at.diagonal + as_int(given.value.second);
         },
     .drawn = {.once_in = 5, .high = 100}},
    {.word =
         {.name = "dilated",
          .value = whole_number(1),
          .examples = "4",
          .doc =
              "keep keys whose distance from the query is a multiple of N, counted like `causal`; a `window` keeps its "
              "width, and then one key in N"},
     .mask = [](const Place& at,
                const GivenFeature& given) { return mod(at.kv - at.diagonal, as_int(given.value.whole)) == 0; },
     .drawn = {.once_in = 6, .low = 1, .high = 9}},
    {.word = {.name = "prefix",
              .value = whole_number(0),
              .examples = "16",
              .doc = "keep the first N keys, even if the words above mask them"},
     .mask = [](const Place& at,
                const GivenFeature& given) { return at.kv < at.first_key + as_int(given.value.whole); },
     .overrules = true,
     .drawn = {.once_in = 6, .high = 40}},
    {.word = {.name = "documents",
              .value = whole_number(1),
              .examples = "4",
              .doc = "the keys of a call are N documents of equal length; keep those of the query's own document"},
     .mask =
         [](const Place& at, const GivenFeature& given) {
           // Of the call's length, not of the problem's. No division by it depends on the key.
           const Expr size = floor_div(kv_len() - 1, as_int(given.value.whole)) + 1;
           const Expr place = at.kv - floor_div(at.q, size) * size;
           return place >= 0 && place < size;
         },
     .drawn = {.once_in = 8, .low = 1, .high = 5}},
    {.word = {.name = "cu_seqlens", .doc = "sequences packed one after the other (docs/problem.md, Packed sequences)"},
     .mask = [](const Place& at, const GivenFeature&) { return at.kv >= at.first_key && at.kv < at.key_end; },
     .tensors = {{{.name = "cu_seqlens_q", .dtype = DType::kI32, .shape = {kSameSize}, .holds = Holds::kQueryStarts},
                  {.name = "cu_seqlens_kv", .dtype = DType::kI32, .shape = {kSameSize}, .holds = Holds::kKeyStarts}}},
     .drawn = {.once_in = 3}},
    {.word = {.name = "key_lengths",
              .doc = "keep `kv < key_lengths[b]`; `bottom_right` then counts from each sequence's own end"},
     .mask = [](const Place& at, const GivenFeature& given) { return at.kv < given.tensor("key_lengths")(at.b); },
     .tensors = {{{.name = "key_lengths", .dtype = DType::kI32, .shape = {kBatch}, .holds = Holds::kKeyCounts}}},
     .not_with = "cu_seqlens",
     .not_with_because = "key_lengths are those of each batch, and cu_seqlens packs sequences within one: let "
                         "cu_seqlens_kv name the keys that count",
     .drawn = {.once_in = 3}},
    {.word = {.name = "segment_ids", .doc = "keep the keys of the query's own segment"},
     .mask =
         [](const Place& at, const GivenFeature& given) {
           return given.tensor("q_segments")(at.b, at.q) == given.tensor("kv_segments")(at.b, at.kv);
         },
     .tensors = {{{.name = "q_segments", .dtype = DType::kI32, .shape = {kBatch, kQLenSize}, .holds = Holds::kIds},
                  {.name = "kv_segments", .dtype = DType::kI32, .shape = {kBatch, kKvLenSize}, .holds = Holds::kIds}}},
     .drawn = {.once_in = 4}},
    {.word = {.name = "mask", .value = one_of("bool|i32"), .doc = "keep the keys where `mask[b, h, q, kv]` is not 0"},
     .mask =
         [](const Place& at, const GivenFeature& given) {
           const Expr value = given.tensor("mask")(at.b, at.h, at.q, at.kv);
           return value.type() == Type::kI1 ? value : value != 0;
         },
     .tensors = {{{.name = "mask", .shape = kPlane}}},
     .drawn = {.once_in = 4}},
    {.word = {.name = "logits", .value = one_of("bf16|f16"), .doc = "round scale · ⟨q, k⟩ (scores are f32 without it)"},
     .score =
         [](const Place&, Expr score, const GivenFeature& given) {
           return given.value.dtype() == DType::kBF16 ? round_bf16(score) : round_f16(score);
         },
     // In f32 there is hardly any other error than that of a score that rounds to another number.
     .drawn = {.once_in = 5, .in_16_bits_only = true}},
    {.word = {.name = "softcap", .value = positive_number(), .examples = "30", .doc = "`x * tanh(score / x)`"},
     .score = [](const Place&, Expr score,
                 const GivenFeature& given) { return given.value.real * tanh(score / given.value.real); },
     .drawn = {.once_in = 6, .low = 2, .high = 40}},
    {.word = {.name = "alibi", .doc = "`score + slope(h) * (kv - q)`, slopes as in the ALiBi paper"},
     .score = [](const Place& at, Expr score,
                 const GivenFeature&) { return score + alibi_slope(at.h, at.problem.q_heads) * (at.kv - at.top_left); },
     .drawn = {.once_in = 6}},
    {.word = {.name = "bias", .value = one_of("f32|bf16|f16"), .doc = "`score + bias[b, h, q, kv]`"},
     .score = [](const Place& at, Expr score,
                 const GivenFeature& given) { return score + given.tensor("bias")(at.b, at.h, at.q, at.kv); },
     .tensors = {{{.name = "bias", .shape = kPlane}}},
     .drawn = {.once_in = 4}},
};

}  // namespace

std::span<const Feature> features() { return kFeatures; }

}  // namespace flashlift::problem
