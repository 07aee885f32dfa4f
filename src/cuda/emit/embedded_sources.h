// The files of src/cuda/kernels as text, embedded in the library (cmake/EmbedSources.cmake).
#pragma once

#include <span>
#include <string_view>

namespace flashlift::cuda {

struct EmbeddedSource {
  std::string_view name;  // its path relative to src/, as in #include
  std::string_view text;
};
std::span<const EmbeddedSource> embedded_sources();

}  // namespace flashlift::cuda
