#include "problem/features.h"

#include <bit>

#include "flashlift/builder.h"
#include "score/compose.h"
#include "score/simplify.h"
#include "support/error.h"

namespace flashlift::problem {
namespace {

Status add_score_mod(Problem& problem, Result<Program> inner) {
  FLASHLIFT_ASSIGN_OR_RETURN(Program program, std::move(inner));
  if (problem.score_mod) {
    FLASHLIFT_ASSIGN_OR_RETURN(program, score::compose(*problem.score_mod, program));
  }
  problem.score_mod = score::simplify(program);
  return {};
}

Status add_mask_mod(Problem& problem, Result<Program> mask) {
  FLASHLIFT_ASSIGN_OR_RETURN(Program program, std::move(mask));
  if (problem.mask_mod) {
    FLASHLIFT_ASSIGN_OR_RETURN(program, score::conjunction(program, *problem.mask_mod));
  }
  problem.mask_mod = score::simplify(program);
  return {};
}

Result<Program> softcap_program(float cap) {
  return trace_score_mod([&](Expr score, Expr, Expr, Expr, Expr) { return cap * tanh(score / cap); });
}

// The packed sequence that query q is in. A query behind all of them is in one without keys.
struct Sequence {
  explicit Sequence(Expr q)
      : next(of_queries.search(q)),
        q_begin(of_queries(next - 1)),
        q_end(of_queries(next)),
        kv_begin(of_keys(next - 1)),
        kv_end(of_keys(next)) {}

  Captured of_queries{"cu_seqlens_q", DType::kI32, {kSameSize}};
  Captured of_keys{"cu_seqlens_kv", DType::kI32, {kSameSize}};
  Expr next;
  Expr q_begin, q_end, kv_begin, kv_end;
};

// Slopes of the ALiBi paper: 2^(-8 (h + 1) / n) for a power of two n; for other head counts the rest are taken from
// between the slopes of twice as many heads.
Result<Program> alibi_program(int64_t heads, bool packed) {
  const int power = static_cast<int>(std::bit_floor(static_cast<uint64_t>(heads)));
  return trace_score_mod([&](Expr score, Expr, Expr h, Expr q, Expr kv) {
    const Expr first = (h + 1) * (-8.0f / static_cast<float>(power));
    const Expr rest = ((h - power) * 2 + 1) * (-4.0f / static_cast<float>(power));
    const Expr exponent = power == heads ? first : select(h < power, first, rest);
    Expr distance = kv - q;
    if (packed) {
      const Sequence sequence(q);
      distance = (kv - sequence.kv_begin) - (q - sequence.q_begin);
    }
    return score + exp2(exponent) * distance;
  });
}

// A size of 1 broadcasts: indices are clamped.
Captured key_lengths_tensor() { return Captured("key_lengths", DType::kI32, {or_one(kBatchSize)}); }

Result<Program> key_lengths_program() {
  return trace_mask_mod([&](Expr b, Expr, Expr, Expr kv) { return kv < key_lengths_tensor()(b); });
}

Result<Program> segments_program() {
  const Captured q_segments("q_segments", DType::kI32, {or_one(kBatchSize), kQLenSize});
  const Captured kv_segments("kv_segments", DType::kI32, {or_one(kBatchSize), kKvLenSize});
  return trace_mask_mod([&](Expr b, Expr, Expr q, Expr kv) { return q_segments(b, q) == kv_segments(b, kv); });
}

Result<Program> packed_program() {
  return trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) {
    const Sequence sequence(q);
    return kv >= sequence.kv_begin && kv < sequence.kv_end;
  });
}

Captured plane(const char* name, DType dtype) {
  return Captured(name, dtype, {or_one(kBatchSize), or_one(kHeadsSize), or_one(kQLenSize), or_one(kKvLenSize)});
}

Result<Program> attention_mask_program(DType dtype) {
  return trace_mask_mod([&](Expr b, Expr h, Expr q, Expr kv) {
    const Expr value = plane("mask", dtype)(b, h, q, kv);
    return value.type() == Type::kI1 ? value : value != 0;
  });
}

Result<Program> bias_program(DType dtype) {
  return trace_score_mod(
      [&](Expr score, Expr b, Expr h, Expr q, Expr kv) { return score + plane("bias", dtype)(b, h, q, kv); });
}

Result<Program> logits_program(DType dtype) {
  ProgramBuilder builder(ProgramKind::kScoreMod);
  const Op round = dtype == DType::kBF16 ? Op::k_round_bf16 : Op::k_round_f16;
  return builder.finish(builder.apply(round, {builder.input(Op::k_score)}));
}

Result<Program> band_program(const Features& features) {
  return trace_mask_mod([&](Expr b, Expr, Expr q, Expr kv) {
    // With lengths of their own, sequences end where those say.
    const Captured lengths = key_lengths_tensor();
    Expr position = q;
    Expr first = 0;
    if (features.cu_seqlens) {
      const Sequence sequence(q);
      first = sequence.kv_begin;
      position = features.bottom_right ? q - sequence.q_end + sequence.kv_end : q - sequence.q_begin + first;
    } else if (features.bottom_right) {
      position = q + ((features.key_lengths ? lengths(b) : kv_len()) - q_len());
    }
    Expr keep = true;
    if (features.causal) {
      keep = keep && kv <= position;
    }
    if (features.window_left) {
      keep = keep && kv >= position - static_cast<int>(*features.window_left);
    }
    if (features.window_right) {
      keep = keep && kv <= position + static_cast<int>(*features.window_right);
    }
    if (features.prefix) {
      keep = keep || kv < first + static_cast<int>(*features.prefix);
    }
    return keep;
  });
}

Result<Program> documents_program(int64_t documents, int64_t length) {
  const int size = static_cast<int>((length + documents - 1) / documents);
  return trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) { return floor_div(q, size) == floor_div(kv, size); });
}

}  // namespace

Status apply_features(const Features& features, Problem& problem) {
  if (features.bias) {
    FLASHLIFT_RETURN_IF_ERROR(add_score_mod(problem, bias_program(*features.bias)));
  }
  if (features.alibi) {
    FLASHLIFT_RETURN_IF_ERROR(add_score_mod(problem, alibi_program(problem.q_heads, features.cu_seqlens)));
  }
  if (features.softcap) {
    FLASHLIFT_RETURN_IF_ERROR(add_score_mod(problem, softcap_program(*features.softcap)));
  }
  if (features.logits) {
    FLASHLIFT_RETURN_IF_ERROR(add_score_mod(problem, logits_program(*features.logits)));
  }
  if (features.mask) {
    FLASHLIFT_RETURN_IF_ERROR(add_mask_mod(problem, attention_mask_program(*features.mask)));
  }
  if (features.segment_ids) {
    FLASHLIFT_RETURN_IF_ERROR(add_mask_mod(problem, segments_program()));
  }
  if (features.cu_seqlens && features.key_lengths) {
    return unsupported(
        "key_lengths are those of each batch, and cu_seqlens packs sequences within one: let cu_seqlens_kv name the "
        "keys that count");
  }
  if (features.cu_seqlens) {
    FLASHLIFT_RETURN_IF_ERROR(add_mask_mod(problem, packed_program()));
  }
  if (features.key_lengths) {
    FLASHLIFT_RETURN_IF_ERROR(add_mask_mod(problem, key_lengths_program()));
  }
  if (features.documents) {
    FLASHLIFT_RETURN_IF_ERROR(add_mask_mod(problem, documents_program(*features.documents, problem.kv_len)));
  }
  if (features.causal || features.window_left || features.window_right || features.prefix) {
    FLASHLIFT_RETURN_IF_ERROR(add_mask_mod(problem, band_program(features)));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, problem.mask_mod));
  return {};
}

}  // namespace flashlift::problem
