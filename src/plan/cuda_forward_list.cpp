#include <fmt/format.h>

#include <limits>

#include "plan/cuda_lists.h"

namespace flashlift::plan {
namespace {

using cuda::KernelKind;
using cuda::LengthClass;

constexpr int kAnyNewer = std::numeric_limits<int>::max();

constexpr CudaForward kList[] = {
    {.kind = KernelKind::kBulkDecode,
     .architectures = {90, kAnyNewer},
     .longest = LengthClass::kFewRows,
     .tiles_by_length = false},
    {.kind = KernelKind::kDecode,
     .architectures = {80, kAnyNewer},
     .longest = LengthClass::kFewRows,
     .tiles_by_length = false},
    {.kind = KernelKind::kHopper,  // newer architectures lack its instructions
     .architectures = {90, 90},
     .longest = LengthClass::kLonger,
     .tiles_by_length = true},
    {.kind = KernelKind::kPortable,
     .architectures = {80, kAnyNewer},
     .longest = LengthClass::kLonger,
     .tiles_by_length = false},
};

}  // namespace

std::span<const CudaForward> cuda_forward_list() { return kList; }

std::optional<std::string> refusal(const Architectures& architectures, const cuda::Device& device) {
  if (device.architecture >= architectures.oldest && device.architecture <= architectures.newest) {
    return std::nullopt;
  }
  return fmt::format("{} has compute capability {}.{}, expected {}.{}{}", device.name, device.architecture / 10,
                     device.architecture % 10, architectures.oldest / 10, architectures.oldest % 10,
                     architectures.newest == kAnyNewer ? " or newer" : "");
}

std::optional<std::string> refusal(const CudaForward& row, const Problem& problem, LengthClass length,
                                   const cuda::Device& device, bool by_name) {
  if (auto reason = refusal(row.architectures, device)) {
    return reason;
  }
  if (length > row.longest && !by_name) {
    return "it is for few query rows beside the keys and values that they read; ask for it by name to use it";
  }
  const Result<cuda::ForwardConfig> config =
      cuda::choose_forward_config(problem, row.kind, length, device.architecture);
  return config.ok() ? std::nullopt : std::optional(config.error().message);
}

}  // namespace flashlift::plan
