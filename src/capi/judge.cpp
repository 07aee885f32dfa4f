// flashlift.h: judging results.
#include "problem/judge.h"

#include <algorithm>
#include <vector>

#include "capi/dlpack.h"
#include "capi/error.h"
#include "problem/elements.h"
#include "problem/verify_tensor.h"
#include "support/error.h"

namespace flashlift::capi {
namespace {

constexpr DLDevice kCpu{kDLCPU, 0};

// The numbers of a tensor that has the shape of `like`, as a dense vector.
template <typename Real>
Result<std::vector<Real>> dense_values(const DLTensor* tensor, const char* name, DType dtype, const TensorView& like) {
  FLASHLIFT_ASSIGN_OR_RETURN(const TensorView view, to_view(tensor, name, kCpu));
  FLASHLIFT_RETURN_IF_ERROR(
      problem::verify_tensor({.name = name, .view = view, .dtype = dtype, .shape = like.shape()}));
  std::vector<Real> values(static_cast<size_t>(view.element_count()));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t offset = problem::element_offset(view, static_cast<int64_t>(i));
    values[i] = static_cast<const Real*>(view.data)[offset];
  }
  return values;
}

FlashliftMeasure to_c(const problem::Measure& measure) {
  return {.error = measure.error, .eager = measure.eager, .limit = measure.limit};
}

Status judge(const FlashliftSubject* given, FlashliftJudgement* result) {
  if (given == nullptr || result == nullptr) {
    return invalid_argument("flashlift_judge: subject and judgement must not be NULL");
  }
  FlashliftSubject subject;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftSubject", subject));
  FLASHLIFT_ASSIGN_OR_RETURN(const size_t known, known_size(*result, "FlashliftJudgement"));
  FLASHLIFT_ASSIGN_OR_RETURN(const TensorView got, to_view(subject.got, "got", kCpu));
  if (!is_float(got.dtype)) {
    return invalid_argument("got has element type {}: expected f64, f32, bf16 or f16", to_string(got.dtype));
  }
  FLASHLIFT_RETURN_IF_ERROR(
      problem::verify_tensor({.name = "got", .view = got, .dtype = got.dtype, .shape = got.shape()}));
  FLASHLIFT_ASSIGN_OR_RETURN(const auto want, dense_values<double>(subject.want, "want", DType::kF64, got));
  FLASHLIFT_ASSIGN_OR_RETURN(const auto eager, dense_values<float>(subject.eager, "eager", DType::kF32, got));
  std::vector<double> magnitudes;
  if (subject.magnitudes != nullptr) {
    FLASHLIFT_ASSIGN_OR_RETURN(magnitudes, dense_values<double>(subject.magnitudes, "magnitudes", DType::kF64, got));
  }
  const int64_t width = std::clamp<int64_t>(subject.row_width, 1, std::max<int64_t>(1, got.element_count()));
  const int64_t rows = got.element_count() / width;
  const problem::Judgement judgement =
      problem::judge({.name = subject.name == nullptr ? "out" : subject.name,
                      .got = got,
                      .want = want,
                      .eager = eager,
                      .magnitudes = magnitudes,
                      .row_width = width,
                      .samples = subject.samples > 0 ? subject.samples : static_cast<double>(rows),
                      .same_non_finite = subject.is_gradient == 0});
  FlashliftJudgement made{.struct_size = result->struct_size,
                          .mean = to_c(judgement.mean),
                          .largest = to_c(judgement.largest),
                          .row = to_c(judgement.row),
                          .ok = judgement.ok ? 1 : 0,
                          .reason = {}};
  judgement.reason.copy(made.reason, sizeof(made.reason) - 1);
  std::memcpy(result, &made, known);
  return {};
}

}  // namespace
}  // namespace flashlift::capi

FlashliftError* flashlift_judge(const FlashliftSubject* subject, FlashliftJudgement* judgement) {
  return flashlift::capi::guarded([&] { return flashlift::capi::judge(subject, judgement); });
}
