// The complete input of one kernel's compilation.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emit/backward_config.h"

namespace flashlift::cuda {

struct KernelSource {
  std::string name;  // of the main file
  std::string text;
  std::vector<std::pair<std::string, std::string>> headers;  // by the name they are included with
  std::vector<std::string> options;                          // definitions; the compiler adds the target
  int architecture = 80;
  bool architecture_specific = false;  // sm_90a instead of sm_90

  // Everything that the machine code depends on, except the compiler, as one text to hash.
  std::string fingerprint() const;
};

// `problem` is verified and simplified, and is what `config` was chosen for.
KernelSource forward_source(const Problem& problem, const ForwardConfig& config);

// Sources of the separate portable backward kernels. There are two, because their tiles differ.
struct Sm80BackwardSources {
  KernelSource queries;
  KernelSource keys;
};
Sm80BackwardSources backward_sources(const Problem& problem, const Sm80Backward& config);
KernelSource backward_source(const Problem& problem, const Sm80FusedKernel& kernel);
KernelSource backward_source(const Problem& problem, const Sm90BackwardKernel& kernel);

// Of the gradients of captured tensors: the portable kernels, or Hopper's for tiles of queries, of keys and of planes.
// Those with nothing to do are missing.
struct CaptureSources {
  std::optional<KernelSource> portable;
  std::optional<KernelSource> queries;
  std::optional<KernelSource> keys;
  std::optional<KernelSource> planes;
};
// `config`: of choose_capture_config(), for these loads. wants_gradient: of which captured tensors (in the order of
// problem.captures).
CaptureSources capture_sources(const Problem& problem, const CaptureConfig& config,
                               const std::vector<CaptureLoad>& loads, const std::vector<bool>& wants_gradient);

// What runs before and behind a main part, for any that wants rows' statistics in tiles, or does not.
KernelSource preprocess_source(const Problem& problem, int architecture, bool row_tiles);
KernelSource postprocess_source(const Problem& problem, int architecture, bool row_tiles);

// All of the above that a backward call may run. Errors: kUnsupported, as of choose_capture_config().
Result<std::vector<KernelSource>> all_backward_sources(const Problem& problem, const BackwardConfig& config,
                                                       const std::vector<bool>& wants_gradient);

}  // namespace flashlift::cuda
