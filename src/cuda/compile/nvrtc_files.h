// Where NVRTC may lie: where pip, conda, PyTorch and the system's packages put it.
#pragma once

#include <filesystem>
#include <vector>

namespace flashlift::cuda {

struct NvrtcPlaces {
  std::filesystem::path own;             // a file of Flashlift's
  std::filesystem::path environment[2];  // folders of the active Python or conda environment; may be empty
  std::filesystem::path system[3];       // of CUDA's toolkits; may be empty
};

// Those of this process.
NvrtcPlaces nvrtc_places();

// In the order in which they are to be tried. A name without a folder is for the loader, which also finds what the
// process has loaded already; all others exist.
std::vector<std::filesystem::path> nvrtc_candidates(const NvrtcPlaces& places);

}  // namespace flashlift::cuda
