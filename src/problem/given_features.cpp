#include <algorithm>
#include <cassert>

#include "problem/features.h"
#include "score/compose.h"
#include "score/simplify.h"
#include "support/error.h"

namespace flashlift::problem {
namespace {

// The packed sequence that contains query q. A query after all sequences is in one without keys.
struct Sequence {
  Sequence(const GivenFeature& packed, Expr q)
      : next(packed.tensor("cu_seqlens_q").search(q)),
        q_begin(packed.tensor("cu_seqlens_q")(next - 1)),
        q_end(packed.tensor("cu_seqlens_q")(next)),
        kv_begin(packed.tensor("cu_seqlens_kv")(next - 1)),
        kv_end(packed.tensor("cu_seqlens_kv")(next)) {}

  Expr next;
  Expr q_begin, q_end, kv_begin, kv_end;
};

// The only function that combines the features which determine the origin of other features' positions.
Place place_of(const GivenFeatures& features, const Problem& problem, Expr b, Expr h, Expr q, Expr kv) {
  const GivenFeature* causal = features.find("causal");
  const GivenFeature* lengths = features.find("key_lengths");
  const bool bottom_right = causal != nullptr && !causal->value.text.empty();
  const Expr keys = lengths != nullptr ? lengths->tensor("key_lengths")(b) : kv_len();
  Place place{.problem = problem,
              .b = b,
              .h = h,
              .q = q,
              .kv = kv,
              .diagonal = bottom_right ? q + (keys - q_len()) : q,
              .top_left = q,
              .first_key = 0,
              .key_end = keys};
  if (const GivenFeature* packed = features.find("cu_seqlens")) {
    const Sequence sequence(*packed, q);
    place.first_key = sequence.kv_begin;
    place.key_end = sequence.kv_end;
    place.top_left = q - sequence.q_begin + sequence.kv_begin;
    place.diagonal = bottom_right ? q - sequence.q_end + sequence.kv_end : place.top_left;
  }
  return place;
}

std::vector<int64_t> shape_of(const FeatureTensor& tensor) {
  return {tensor.shape.begin(), std::ranges::find(tensor.shape, 0)};
}

}  // namespace

Captured GivenFeature::tensor(std::string_view name) const {
  const auto found = std::ranges::find_if(row->tensors, [&](const FeatureTensor& one) { return one.name == name; });
  assert(found != row->tensors.end());
  return Captured(found->name, found->dtype ? *found->dtype : value.dtype(), shape_of(*found));
}

Status GivenFeatures::add(const Feature& row, std::string_view value) {
  FLASHLIFT_ASSIGN_OR_RETURN(Given read, read_value(row.word, value));
  const auto behind = std::ranges::find_if(given_, [&](const GivenFeature& one) { return one.row > &row; });
  given_.insert(behind, {&row, std::move(read)});
  return {};
}

const GivenFeature* GivenFeatures::find(std::string_view word) const {
  const auto found = std::ranges::find_if(given_, [&](const GivenFeature& one) { return word == one.row->word.name; });
  return found == given_.end() ? nullptr : &*found;
}

Status GivenFeatures::verify() const {
  for (const GivenFeature& one : given_) {
    if (one.row->not_with != nullptr && find(one.row->not_with) != nullptr) {
      return unsupported("`{}` does not go with `{}`: {}", one.row->word.name, one.row->not_with,
                         one.row->not_with_because);
    }
  }
  return {};
}

Status GivenFeatures::apply(Problem& problem) const {
  FLASHLIFT_RETURN_IF_ERROR(verify());
  if (std::ranges::any_of(given_, [](const GivenFeature& one) { return one.row->score != nullptr; })) {
    FLASHLIFT_ASSIGN_OR_RETURN(Program scores, score_program(problem));
    if (problem.score_mod) {
      FLASHLIFT_ASSIGN_OR_RETURN(scores, score::compose(*problem.score_mod, scores));
    }
    problem.score_mod = score::simplify(scores);
  }
  if (std::ranges::any_of(given_, [](const GivenFeature& one) { return one.row->mask != nullptr; })) {
    FLASHLIFT_ASSIGN_OR_RETURN(Program masks, mask_program(problem));
    if (problem.mask_mod) {
      FLASHLIFT_ASSIGN_OR_RETURN(masks, score::conjunction(masks, *problem.mask_mod));
    }
    problem.mask_mod = score::simplify(masks);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, problem.mask_mod));
  return {};
}

Result<Program> GivenFeatures::score_program(const Problem& problem) const {
  return trace_score_mod([&](Expr score, Expr b, Expr h, Expr q, Expr kv) {
    const Place at = place_of(*this, problem, b, h, q, kv);
    for (const GivenFeature& one : given_) {
      score = one.row->score != nullptr ? one.row->score(at, score, one) : score;
    }
    return score;
  });
}

Result<Program> GivenFeatures::mask_program(const Problem& problem) const {
  return trace_mask_mod([&](Expr b, Expr h, Expr q, Expr kv) {
    const Place at = place_of(*this, problem, b, h, q, kv);
    Expr keep = true;
    for (const GivenFeature& one : given_) {
      if (one.row->mask != nullptr) {
        const Expr keeps = one.row->mask(at, one);
        keep = one.row->overrules ? keep || keeps : keep && keeps;
      }
    }
    return keep;
  });
}

const FeatureTensor* feature_tensor(const Capture& capture) {
  for (const Feature& row : features()) {
    for (const FeatureTensor& tensor : row.tensors) {
      if (tensor.name != nullptr && capture.name == tensor.name &&
          capture.dtype == tensor.dtype.value_or(capture.dtype) && capture.shape == shape_of(tensor)) {
        return &tensor;
      }
    }
  }
  return nullptr;
}

}  // namespace flashlift::problem
