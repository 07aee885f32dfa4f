#include <limits>

#include "plan/cuda_lists.h"

namespace flashlift::plan {
namespace {

constexpr int kAnyNewer = std::numeric_limits<int>::max();

constexpr CudaBackward kList[] = {
    // No newer architecture has its instructions.
    {.kind = cuda::BackwardKind::kHopper, .architectures = {90, 90}},
    {.kind = cuda::BackwardKind::kPortable, .architectures = {80, kAnyNewer}},
};
static_assert(std::size(kList) == cuda::kBackwardKinds);

}  // namespace

std::span<const CudaBackward> cuda_backward_list() { return kList; }

std::optional<std::string> refusal(const CudaBackward& row, const Problem& problem, const cuda::Device& device) {
  if (auto reason = refusal(row.architectures, device)) {
    return reason;
  }
  const Result<cuda::BackwardConfig> config = cuda::choose_backward_config(problem, row.kind, device.architecture);
  return config.ok() ? std::nullopt : std::optional(config.error().message);
}

bool reads_residual(const CudaBackward& row, const Problem& problem, const cuda::Device& device) {
  if (problem.out_dtype == DType::kF32) {
    return false;  // an f32 output has no rounding error
  }
  Problem exact = problem;
  exact.want_residual = true;
  const Result<cuda::BackwardConfig> config = cuda::choose_backward_config(exact, row.kind, device.architecture);
  return config.ok() && std::visit([](const auto& family) { return cuda::reads_residual(family); }, *config);
}

}  // namespace flashlift::plan
