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

KernelSource forward_source(const Problem& problem, const ForwardConfig& config) {
  const bool hopper = config.kind == KernelKind::kHopper;
  KernelSource source;
  switch (config.kind) {
    case KernelKind::kDecode:
      source.name = "sm80_decode.cu";
      break;
    case KernelKind::kHopper:
      source.name = "sm90_forward.cu";
      break;
    case KernelKind::kPortable:
      source.name = "sm80_forward.cu";
      break;
  }
  for (const EmbeddedSource& file : embedded_sources()) {
    if (file.name == source.name) {
      source.text = file.text;
    } else if (!file.name.ends_with(".cu")) {
      source.headers.emplace_back(file.name, file.text);
    }
  }
  source.headers.emplace_back("program.cuh", emit_programs(problem));
  if (hopper) {
    source.headers.emplace_back("wgmma.cuh", emit_wgmma(config));
  }
  source.options = definitions(config);
  source.architecture = config.architecture;
  source.architecture_specific = hopper;
  return source;
}

}  // namespace flashlift::cuda
