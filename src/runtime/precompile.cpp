#include "flashlift/precompile.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <new>
#include <optional>
#include <thread>

#include "cuda/compile/cubin_cache.h"
#include "cuda/compile/nvrtc.h"
#include "cuda/emit/tile_classes.h"
#include "plan/cuda_lists.h"
#include "plan/implementation.h"
#include "runtime/simplified.h"
#include "support/beside.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/fork_guard.h"

namespace flashlift {
namespace {

using cuda::KernelSource;

// A kernel source and the problems whose calls need it.
struct Wanted {
  PrecompiledKernel kernel;
  KernelSource source;
};

// The part of the source's name after the folder: "cuda/kernels/sm90/forward.cu" becomes sm90/forward.
std::string kernel_name(const std::string& source) {
  constexpr std::string_view kFolder = "cuda/kernels/";
  const size_t begin = source.starts_with(kFolder) ? kFolder.size() : 0;
  return source.substr(begin, source.rfind('.') - begin);
}

// A device described by its architecture alone, which is all that the lists need.
cuda::Device device_of(int architecture) {
  cuda::Device device;
  device.name = fmt::format("sm_{}", architecture);
  device.architecture = architecture;
  return device;
}

class Sources {
 public:
  Sources(const Problem& problem, size_t index, const PrecompileOptions& options)
      : problem_(runtime::simplified_for_own_keys(problem).value_or(runtime::simplified_and_ordered(problem))),
        index_(index),
        options_(options) {}

  Status add_forward(const cuda::Device& device, int64_t q_len, std::vector<Wanted>& wanted) const {
    for (const cuda::LengthClass length : cuda::length_classes(problem_, {problem_.batch, q_len, problem_.kv_len})) {
      FLASHLIFT_RETURN_IF_ERROR(add_forward(device, q_len, length, wanted));
    }
    return {};
  }

  Status add_backward(const cuda::Device& device, std::vector<Wanted>& wanted) const {
    FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<bool> wants_gradient, find_gradients());
    const auto refusal = [&](const plan::CudaBackward& row, bool /*by_name*/) {
      return plan::refusal(row, problem_, device);
    };
    FLASHLIFT_ASSIGN_OR_RETURN(const auto answers, plan::evaluate(plan::cuda_backward_list(), options_.implementation,
                                                                  "CUDA's backward pass", refusal));
    const plan::CudaBackward* const row = plan::first_of(answers);
    if (row == nullptr) {
      return unsupported("no CUDA implementation gives the gradients of this problem on {}: {}", device.name,
                         plan::reasons_of(answers));
    }
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::BackwardConfig config,
                               cuda::choose_backward_config(problem_, row->kind, device.architecture));
    FLASHLIFT_ASSIGN_OR_RETURN(std::vector<KernelSource> sources,
                               cuda::all_backward_sources(problem_, config, wants_gradient));
    for (KernelSource& source : sources) {
      add(device, row->name(), std::move(source), wanted);
    }
    return {};
  }

 private:
  Status add_forward(const cuda::Device& device, int64_t q_len, cuda::LengthClass length,
                     std::vector<Wanted>& wanted) const {
    const auto refusal = [&](const plan::CudaForward& row, bool by_name) {
      return plan::refusal(row, problem_, length, device, by_name);
    };
    FLASHLIFT_ASSIGN_OR_RETURN(const auto answers, plan::evaluate(plan::cuda_forward_list(), options_.implementation,
                                                                  "CUDA's forward pass", refusal));
    const plan::CudaForward* const row = plan::first_of(answers);
    if (row == nullptr) {
      return unsupported("no CUDA implementation takes this problem on {}: {}", device.name, plan::reasons_of(answers));
    }
    const std::vector<cuda::LengthClass> classes =
        row->tiles_by_length ? cuda::TileClasses(problem_).candidates(q_len) : std::vector{row->longest};
    for (const cuda::LengthClass tiles : classes) {
      FLASHLIFT_ASSIGN_OR_RETURN(const cuda::ForwardConfig config,
                                 cuda::choose_forward_config(problem_, row->kind, tiles, device.architecture));
      add(device, row->name(), cuda::forward_source(problem_, config), wanted);
    }
    return {};
  }

  Result<std::vector<bool>> find_gradients() const {
    std::vector<bool> wants_gradient(problem_.captures.size());
    for (const std::string& name : options_.gradients) {
      const auto found = std::ranges::find(problem_.captures, name, &Capture::name);
      if (found == problem_.captures.end() || !is_float(found->dtype)) {
        return invalid_argument("{} is not a captured float tensor of this problem: expected the name of one", name);
      }
      wants_gradient[static_cast<size_t>(found - problem_.captures.begin())] = true;
    }
    return wants_gradient;
  }

  void add(const cuda::Device& device, const char* implementation, KernelSource source,
           std::vector<Wanted>& wanted) const {
    wanted.push_back({{.problem = index_,
                       .architecture = device.architecture,
                       .implementation = implementation,
                       .kernel = kernel_name(source.name)},
                      std::move(source)});
  }

  Problem problem_;
  size_t index_;
  const PrecompileOptions& options_;
};

Status check_architectures(const cuda::Nvrtc& nvrtc, const std::vector<int>& architectures) {
  for (const int architecture : architectures) {
    if (std::ranges::find(nvrtc.architectures(), architecture) == nvrtc.architectures().end()) {
      return invalid_argument("NVRTC {} does not compile for architecture {}: expected one of {}", nvrtc.version(),
                              architecture, fmt::join(nvrtc.architectures(), ", "));
    }
  }
  return {};
}

Result<std::vector<Wanted>> find_sources(const std::vector<Problem>& problems, const PrecompileOptions& options) {
  if (options.architectures.empty()) {
    return invalid_argument("no architecture was named: expected compute capabilities times ten, such as 80 or 90");
  }
  // Wrong arguments are named first, also where NVRTC is missing.
  const Result<const cuda::Nvrtc*> nvrtc = cuda::Nvrtc::get();
  if (nvrtc.ok()) {
    FLASHLIFT_RETURN_IF_ERROR(check_architectures(**nvrtc, options.architectures));
  }
  const bool backward = options.backward || !options.gradients.empty();
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < problems.size(); ++i) {
    FLASHLIFT_RETURN_IF_ERROR(verify(problems[i]));
    if (backward) {
      FLASHLIFT_RETURN_IF_ERROR(verify_backward(problems[i]));
    }
    const Sources sources(problems[i], i, options);
    const std::vector<int64_t> q_lens = options.q_lens.empty() ? std::vector{problems[i].q_len} : options.q_lens;
    for (const int architecture : options.architectures) {
      const cuda::Device device = device_of(architecture);
      for (const int64_t q_len : q_lens) {
        if (q_len < 1) {
          return invalid_argument("a number of queries is {}: expected at least 1", q_len);
        }
        FLASHLIFT_RETURN_IF_ERROR(sources.add_forward(device, q_len, wanted));
      }
      if (backward) {
        FLASHLIFT_RETURN_IF_ERROR(sources.add_backward(device, wanted));
      }
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(nvrtc);
  return wanted;
}

// Problems, lengths and heads share kernels: each kernel is stored once, and listed once per problem.
Result<std::vector<PrecompiledKernel>> store(std::vector<Wanted> wanted) {
  std::map<std::string, std::optional<Result<cuda::StoredCubin>>> stored;
  std::vector<std::pair<const KernelSource*, std::optional<Result<cuda::StoredCubin>>*>> tasks;
  std::vector<std::string> keys;
  for (const Wanted& one : wanted) {
    const auto [at, is_new] = stored.try_emplace(keys.emplace_back(one.source.fingerprint()));
    if (is_new) {
      tasks.emplace_back(&one.source, &at->second);
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < tasks.size(); i = next++) {
      tasks[i].second->emplace(cuda::store_cubin(*tasks[i].first));
    }
  };
  std::vector<std::future<void>> workers;
  const size_t threads = std::min<size_t>(tasks.size(), std::max(1U, std::thread::hardware_concurrency()));
  for (size_t i = 1; i < threads; ++i) {
    workers.push_back(begin_beside(work));
  }
  work();
  for (std::future<void>& worker : workers) {
    worker.get();
  }
  std::vector<PrecompiledKernel> kernels;
  std::map<std::string, std::vector<size_t>> listed;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Result<cuda::StoredCubin>& result = *stored.find(keys[i])->second;
    if (!result.ok()) {
      return result.error();
    }
    std::vector<size_t>& problems = listed[keys[i]];
    if (std::ranges::find(problems, wanted[i].kernel.problem) != problems.end()) {
      continue;
    }
    problems.push_back(wanted[i].kernel.problem);
    kernels.push_back(std::move(wanted[i].kernel));
    kernels.back().was_cached = result->was_there;
    kernels.back().seconds = result->was_there ? 0 : result->seconds;
  }
  return kernels;
}

}  // namespace

Result<std::vector<PrecompiledKernel>> precompile(const std::vector<Problem>& problems,
                                                  const PrecompileOptions& options) {
  const UncutByFork uncut;
  FLASHLIFT_RETURN_IF_ERROR(uncut.status());
  try {
    FLASHLIFT_RETURN_IF_ERROR(check_environment());
    FLASHLIFT_ASSIGN_OR_RETURN(std::vector<Wanted> wanted, find_sources(problems, options));
    return store(std::move(wanted));
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::kInternal, "out of memory"};
  }
}

Result<std::vector<int>> architectures_here() {
  FLASHLIFT_ASSIGN_OR_RETURN(const int count, cuda::device_count());
  std::vector<int> architectures;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    FLASHLIFT_ASSIGN_OR_RETURN(const cuda::Device device, cuda::get_device(ordinal));
    architectures.push_back(device.architecture);
  }
  std::ranges::sort(architectures);
  architectures.erase(std::ranges::unique(architectures).begin(), architectures.end());
  return architectures;
}

}  // namespace flashlift
