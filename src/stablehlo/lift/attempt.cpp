#include "stablehlo/lift/attempt.h"

#include "stablehlo/lift/stages.h"

namespace flashlift::stablehlo {
namespace {

// The report's description of what was recognised.
std::string summary(const Problem& p, const Softmax& softmax, bool has_gradient) {
  std::string text = fmt::format("softmax over {} keys, {} of {} queries x {} heads", p.kv_len,
                                 p.kv_heads == p.q_heads ? "attention" : "grouped attention", p.q_len, p.q_heads);
  const auto note = [&](bool present, std::string_view words) { text += present ? fmt::format(", {}", words) : ""; };
  note(p.score_mod.has_value(), "with a score_mod");
  note(p.mask_mod.has_value(), "with a mask_mod");
  note(p.sinks > 0, "with sinks");
  note(p.keep_mask, "with dropout by the module's own random bits");
  note(p.want_lse, "with the log-sum-exp");
  note(softmax.maximum == kNoSym, "finite where the module's exponentials overflow or all of a row vanish");
  note(has_gradient && p.empty_rows == EmptyRows::kNan,
       "with gradients that are finite where a row without keys makes the module's NaN");
  return text;
}

}  // namespace

Outcome<LiftedAttention> lift_plane(Plane& plane, const DigitSizes& digits) {
  Forward forward;
  FLASHLIFT_ASSIGN_OR_RETURN(forward.probabilities, read_probabilities(plane, digits));
  plane.has_probabilities = true;
  FLASHLIFT_ASSIGN_OR_RETURN(forward.operands, place_operands(plane, forward.probabilities));
  FLASHLIFT_ASSIGN_OR_RETURN(forward.match, match_probabilities(plane, forward.probabilities, forward.operands));
  FLASHLIFT_ASSIGN_OR_RETURN(forward.dimensions,
                             name_dimensions(plane, forward.probabilities, forward.operands, forward.match));
  std::optional<LogSumExp> log_sum_exp;
  std::optional<Gradient> gradient;
  if (plane.options.gradient == GradientUse::kNone) {
    FLASHLIFT_ASSIGN_OR_RETURN(log_sum_exp, check_uses(plane, forward));
  } else {
    FLASHLIFT_ASSIGN_OR_RETURN(gradient, find_gradient(plane, forward));
    log_sum_exp = gradient->log_sum_exp;
  }
  FLASHLIFT_ASSIGN_OR_RETURN(Programs programs,
                             build_programs(plane, forward, log_sum_exp, gradient ? &*gradient : nullptr));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::optional<Sinks> sinks, place_sinks(plane, forward, programs));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::optional<KeepMask> keep, place_keep_mask(plane, forward, programs));
  Problem& problem = programs.problem;
  problem.sinks = sinks ? sinks->count : 0;
  problem.keep_mask = keep.has_value();
  problem.dropout = keep ? 1 - 1 / programs.match.softmax.keep_factor : 0;

  LiftedAttention lifted{.first_product = plane.pair.first,
                         .second_product = plane.pair.second,
                         .side_of_probabilities = plane.pair.side,
                         .q = forward.dimensions.q_view,
                         .k = forward.dimensions.k_view,
                         .v = forward.dimensions.v_view,
                         .captures = programs.captures,
                         .out = forward.dimensions.out_view,
                         .nan_where_lse_is_minus_infinity = programs.nan_where_lse_is_minus_infinity,
                         .summary = summary(problem, programs.match.softmax, gradient.has_value())};
  if (!plane.has_output()) {
    lifted.out.call_shape = {problem.batch, problem.q_heads, problem.q_len, problem.value_dim};
    lifted.out.dims = "bhsd";
  }
  if (sinks) {
    lifted.sinks = sinks->view;
  }
  if (keep) {
    lifted.keep_mask = keep->view;
    lifted.keep_shape = keep->shape;
    lifted.zero_where_all_is_dropped = keep->clears_nan;
  }
  if (log_sum_exp) {
    lifted.lse = log_sum_exp->view;
  }
  if (gradient) {
    FLASHLIFT_ASSIGN_OR_RETURN(lifted.gradient, write_gradient(plane, forward, programs, *std::move(gradient)));
  }
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  lifted.problem = std::move(problem);
  return lifted;
}

}  // namespace flashlift::stablehlo
