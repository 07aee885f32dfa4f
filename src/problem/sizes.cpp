#include "problem/sizes.h"

namespace flashlift::problem {
namespace {

constexpr Size kSizes[] = {
    {.name = "b", .of_first = &Problem::batch, .examples = "b2", .doc = "batch", .without = "1"},
    {.name = "h",
     .first = "hq",
     .second = "hkv",
     .of_first = &Problem::q_heads,
     .of_second = &Problem::kv_heads,
     .examples = "h8 hq32 hkv8",
     .doc = "heads, or query heads and key-value heads (a divisor of the query heads)"},
    {.name = "s",
     .first = "sq",
     .second = "skv",
     .of_first = &Problem::q_len,
     .of_second = &Problem::kv_len,
     .examples = "s1024 sq1 skv4096",
     .doc = "length, or numbers of queries and keys"},
    {.name = "d",
     .first = "dqk",
     .second = "dv",
     .of_first = &Problem::head_dim,
     .of_second = &Problem::value_dim,
     .examples = "d64 dqk192 dv128",
     .doc = "head dimension, or the one of q and k and the one of v; 1 to 256"},
};

}  // namespace

std::span<const Size> sizes() { return kSizes; }

}  // namespace flashlift::problem
