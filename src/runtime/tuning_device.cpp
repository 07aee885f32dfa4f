#include "runtime/tuning_device.h"

#include <thread>

#include "runtime/simplified.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/lazy.h"
#include "support/processor.h"
#ifdef FLASHLIFT_HAS_CPU
#include "plan/cpu_list.h"
#endif
#ifdef FLASHLIFT_HAS_CUDA
#include "plan/cuda_lists.h"
#endif

namespace flashlift::runtime {

Result<std::string> tuning_device(DeviceKind device, [[maybe_unused]] int ordinal) {
  if (device == DeviceKind::kCpu) {
    static constinit Lazy<const std::string> name;
    const int threads = wanted_thread_count().value_or(static_cast<int>(std::thread::hardware_concurrency()));
    return fmt::format("{}, {} threads", name.get(processor_name), threads);
  }
#ifdef FLASHLIFT_HAS_CUDA
  FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Device found, cuda::get_device(ordinal));
  return fmt::format("{}, compute capability {}.{}", found.name, found.architecture / 10, found.architecture % 10);
#else
  return unsupported("this build has no CUDA backend: configure it with FLASHLIFT_CUDA=ON");
#endif
}

std::vector<std::string> implementations_by_name(const Problem& problem, const CompileOptions& options,
                                                 [[maybe_unused]] bool backward) {
  const SimplifiedProblem compiled(problem);
  std::vector<std::string> names;
  if (options.device == DeviceKind::kCpu) {
#ifdef FLASHLIFT_HAS_CPU
    const Result<plan::CpuMachine> machine = plan::this_cpu();
    for (const plan::CpuImplementation& row : plan::cpu_list()) {
      if (machine.ok() && row.isa != cpu::Isa::kPortable && !plan::is_less_exact(row, *compiled) &&
          !plan::refusal(row, *compiled, *machine, true)) {
        names.emplace_back(row.name());
      }
    }
#endif
    return names;
  }
#ifdef FLASHLIFT_HAS_CUDA
  const Result<cuda::Device> device = cuda::get_device(options.device_ordinal);
  if (!device.ok()) {
    return names;
  }
  if (backward) {
    for (const plan::CudaBackward& row : plan::cuda_backward_list()) {
      if (!plan::refusal(row, *compiled, *device)) {
        names.emplace_back(row.name());
      }
    }
    return names;
  }
  const cuda::LengthClass length = cuda::length_class(*compiled, cuda::sizes_of(problem), device->multiprocessors);
  for (const plan::CudaForward& row : plan::cuda_forward_list()) {
    if (!plan::refusal(row, *compiled, length, *device, true)) {
      names.emplace_back(row.name());
    }
  }
#endif
  return names;
}

}  // namespace flashlift::runtime
