#include "cuda/emit/kernel_source.h"

#include <algorithm>
#include <iterator>

#include "cuda/emit/capture_loads.h"
#include "cuda/emit/embedded_sources.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/emit/wgmma_emitter.h"
#include "support/error.h"

namespace flashlift::cuda {

std::string KernelSource::fingerprint() const {
  // Each field starts with its length, so that different lists of fields never give the same text.
  std::string all;
  const auto add = [&](std::string_view field) {
    all += std::to_string(field.size()) + ":";
    all += field;
  };
  add(name);
  add(text);
  for (const auto& [header, content] : headers) {
    add(header);
    add(content);
  }
  for (const std::string& option : options) {
    add(option);
  }
  add(std::to_string(architecture) + (architecture_specific ? "a" : ""));
  return all;
}

namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

// A kernel's main file, with all headers and generated ones.
KernelSource source_of(std::string name, Headers generated, std::vector<std::string> options, int architecture) {
  KernelSource source;
  source.name = std::move(name);
  for (const EmbeddedSource& file : embedded_sources()) {
    if (file.name == source.name) {
      source.text = file.text;
    } else if (!file.name.ends_with(".cu")) {
      source.headers.emplace_back(file.name, file.text);
    }
  }
  std::ranges::move(generated, std::back_inserter(source.headers));
  source.options = std::move(options);
  source.architecture = architecture;
  return source;
}

// Those of a family's main part. One overload for each.
void add_main_sources(const Problem& problem, const Sm80Backward& config, std::vector<KernelSource>& sources) {
  if (config.fused) {
    sources.push_back(backward_source(problem, *config.fused));
  }
  if (config.runs_apart()) {
    Sm80BackwardSources both = backward_sources(problem, config);
    sources.push_back(std::move(both.queries));
    sources.push_back(std::move(both.keys));
  }
}

void add_main_sources(const Problem& problem, const Sm90Backward& config, std::vector<KernelSource>& sources) {
  if (config.fused) {
    sources.push_back(backward_source(problem, *config.fused));
  } else {
    sources.push_back(backward_source(problem, config.keys));
    if (config.values) {
      sources.push_back(backward_source(problem, *config.values));
    }
  }
  if (config.runs_queries()) {
    sources.push_back(backward_source(problem, config.queries));
  }
  if (config.fallback) {
    add_main_sources(problem, *config.fallback, sources);
  }
}

const char* forward_file(const ForwardConfig& config) {
  switch (config.kind) {
    case KernelKind::kBulkDecode:
      return "cuda/kernels/sm90/decode.cu";
    case KernelKind::kDecode:
      return "cuda/kernels/sm80/decode.cu";
    case KernelKind::kHopper:
      return "cuda/kernels/sm90/forward.cu";
    case KernelKind::kPortable:
      return config.dtype == DType::kF32 ? "cuda/kernels/sm80/forward_f32.cu" : "cuda/kernels/sm80/forward.cu";
  }
  return "?";
}

}  // namespace

KernelSource forward_source(const Problem& problem, const ForwardConfig& config) {
  Headers generated = {{"program.cuh", emit_programs(problem)}, {"bounds.cuh", emit_bounds(problem)}};
  const bool hopper = config.kind == KernelKind::kHopper;
  if (hopper) {
    generated.emplace_back("wgmma.cuh", emit_wgmma(config));
  }
  KernelSource source = source_of(forward_file(config), std::move(generated), definitions(config), config.architecture);
  source.architecture_specific = hopper;
  return source;
}

Sm80BackwardSources backward_sources(const Problem& problem, const Sm80Backward& config) {
  const auto source = [&](const char* name, std::vector<std::string> options) {
    Headers generated = {{"program.cuh", emit_programs(problem)}, {"gradient.cuh", emit_gradient(problem, {})}};
    return source_of(name, std::move(generated), std::move(options), config.queries.architecture);
  };
  return {.queries = source("cuda/kernels/sm80/backward_queries.cu", query_definitions(config)),
          .keys = source("cuda/kernels/sm80/backward_keys.cu", key_definitions(config))};
}

CaptureSources capture_sources(const Problem& problem, const CaptureConfig& config,
                               const std::vector<CaptureLoad>& loads, const std::vector<bool>& wants_gradient) {
  const auto count = [&](CaptureSum sum) { return std::ranges::count(loads, sum, &CaptureLoad::sum); };
  const bool planes = count(CaptureSum::kPlane) > 0;
  const bool keys = count(CaptureSum::kKey) > 0;
  const bool queries = std::ssize(loads) > count(CaptureSum::kPlane) + count(CaptureSum::kKey);
  const Headers generated = {{"program.cuh", emit_programs(problem)},
                             {"gradient.cuh", emit_gradient(problem, wants_gradient)}};
  const auto hopper = [&](const Sm90BackwardKernel& kernel) {
    Headers headers = generated;
    headers.emplace_back("wgmma.cuh", emit_backward_wgmma(kernel));
    const char* name =
        kernel.planes ? "cuda/kernels/sm90/backward_planes.cu" : "cuda/kernels/sm90/backward_captures.cu";
    KernelSource source = source_of(name, std::move(headers), definitions(config, kernel), kernel.config.architecture);
    source.architecture_specific = true;
    return source;
  };
  CaptureSources sources;
  if (!config.hopper) {
    sources.portable =
        source_of("cuda/kernels/sm80/backward_captures.cu", generated, definitions(config), config.config.architecture);
    return sources;
  }
  if (queries || config.makes_rows) {
    sources.queries = hopper(config.hopper->queries);
  }
  if (keys) {
    sources.keys = hopper(config.hopper->keys);
  }
  if (planes) {
    sources.planes = hopper(config.hopper->planes);
  }
  return sources;
}

KernelSource backward_source(const Problem& problem, const Sm80FusedKernel& kernel) {
  Headers generated = {{"program.cuh", emit_programs(problem)}, {"gradient.cuh", emit_gradient(problem, {})}};
  return source_of("cuda/kernels/sm80/backward_fused.cu", std::move(generated), definitions(kernel),
                   kernel.config.architecture);
}

KernelSource backward_source(const Problem& problem, const Sm90BackwardKernel& kernel) {
  const char* name = kernel.fused && kernel.roles ? "cuda/kernels/sm90/backward_fused_roles.cu"
                     : kernel.fused               ? "cuda/kernels/sm90/backward_fused.cu"
                     : kernel.roles               ? "cuda/kernels/sm90/backward_keys_roles.cu"
                     : kernel.rows_are_keys       ? "cuda/kernels/sm90/backward_keys.cu"
                                                  : "cuda/kernels/sm90/backward_queries.cu";
  Headers generated = {{"program.cuh", emit_programs(problem)},
                       {"gradient.cuh", emit_gradient(problem, {})},
                       {"wgmma.cuh", emit_backward_wgmma(kernel)}};
  KernelSource source = source_of(name, std::move(generated), definitions(kernel), kernel.config.architecture);
  source.architecture_specific = true;
  return source;
}

KernelSource preprocess_source(const Problem& problem, int architecture, bool row_tiles) {
  return source_of("cuda/kernels/common/backward_preprocess.cu", {{"bounds.cuh", emit_bounds(problem)}},
                   preprocess_definitions(problem, row_tiles), architecture);
}

KernelSource postprocess_source(const Problem& problem, int architecture, bool row_tiles) {
  return source_of("cuda/kernels/common/backward_postprocess.cu", {}, postprocess_definitions(problem, row_tiles),
                   architecture);
}

Result<std::vector<KernelSource>> all_backward_sources(const Problem& problem, const BackwardConfig& config,
                                                       const std::vector<bool>& wants_gradient) {
  const bool row_tiles = std::visit([](const auto& family) { return has_row_tiles(family); }, config);
  const int architecture = std::visit([](const auto& family) { return architecture_of(family); }, config);
  std::vector<KernelSource> sources = {preprocess_source(problem, architecture, row_tiles)};
  std::visit([&](const auto& family) { add_main_sources(problem, family, sources); }, config);
  if (const std::vector<CaptureLoad> loads = capture_loads(problem, wants_gradient); !loads.empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(const CaptureConfig captures, choose_capture_config(problem, config, loads));
    CaptureSources parts = capture_sources(problem, captures, loads, wants_gradient);
    for (std::optional<KernelSource>* source : {&parts.portable, &parts.queries, &parts.keys, &parts.planes}) {
      if (*source) {
        sources.push_back(std::move(**source));
      }
    }
  }
  if (problem.sinks > 0 || std::ranges::find(wants_gradient, true) != wants_gradient.end()) {
    sources.push_back(postprocess_source(problem, architecture, row_tiles));
  }
  return sources;
}

}  // namespace flashlift::cuda
