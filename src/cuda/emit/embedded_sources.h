// The files of src/cuda/kernels as text, put into the library when it is built (cmake/EmbedSources.cmake).
#pragma once

#include <span>
#include <string_view>

namespace flashlift::cuda {

struct EmbeddedSource {
  std::string_view name;  // its path from src/, as it is included
  std::string_view text;
};
std::span<const EmbeddedSource> embedded_sources();

}  // namespace flashlift::cuda
