#include "cuda/emit/kernel_source.h"

#include "cuda/emit/embedded_sources.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/emit/wgmma_emitter.h"

namespace flashlift::cuda {

std::string KernelSource::fingerprint() const {
  // Lengths keep neighbouring fields from running into each other.
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

// A kernel's main file with all headers, and `program` as program.cuh.
KernelSource source_of(std::string name, std::string program, std::vector<std::string> options, int architecture) {
  KernelSource source;
  source.name = std::move(name);
  for (const EmbeddedSource& file : embedded_sources()) {
    if (file.name == source.name) {
      source.text = file.text;
    } else if (!file.name.ends_with(".cu")) {
      source.headers.emplace_back(file.name, file.text);
    }
  }
  source.headers.emplace_back("program.cuh", std::move(program));
  source.options = std::move(options);
  source.architecture = architecture;
  return source;
}

const char* forward_file(KernelKind kind) {
  switch (kind) {
    case KernelKind::kBulkDecode:
      return "cuda/kernels/sm90/decode.cu";
    case KernelKind::kDecode:
      return "cuda/kernels/sm80/decode.cu";
    case KernelKind::kHopper:
      return "cuda/kernels/sm90/forward.cu";
    case KernelKind::kPortable:
      return "cuda/kernels/sm80/forward.cu";
  }
  return "?";
}

}  // namespace

KernelSource forward_source(const Problem& problem, const ForwardConfig& config) {
  KernelSource source =
      source_of(forward_file(config.kind), emit_programs(problem), definitions(config), config.architecture);
  if (config.kind == KernelKind::kHopper) {
    source.headers.emplace_back("wgmma.cuh", emit_wgmma(config));
    source.architecture_specific = true;
  }
  return source;
}

BackwardSources backward_sources(const Problem& problem, const BackwardConfig& config,
                                 const std::vector<bool>& wants_gradient) {
  const auto source = [&](const char* name, std::vector<std::string> options, const std::vector<bool>& wanted) {
    KernelSource made = source_of(name, emit_programs(problem), std::move(options), config.queries.architecture);
    made.headers.emplace_back("gradient.cuh", emit_gradient(problem, wanted));
    return made;
  };
  return {.queries = source("cuda/kernels/sm80/backward_queries.cu", query_definitions(config), wants_gradient),
          .keys = source("cuda/kernels/sm80/backward_keys.cu", key_definitions(config), {})};
}

}  // namespace flashlift::cuda
