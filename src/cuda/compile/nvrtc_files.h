// The places where pip, conda, PyTorch and the system's packages install NVRTC.
#pragma once

#include <filesystem>
#include <vector>

namespace flashlift::cuda {

struct NvrtcPlaces {
  std::filesystem::path own;             // a file of Flashlift's
  std::filesystem::path environment[2];  // folders of the active Python or conda environment; may be empty
  std::filesystem::path system[3];       // of CUDA's toolkits; may be empty
};

// The places for this process.
NvrtcPlaces nvrtc_places();

// Files in the order in which to try them; all exist. A name without a folder is resolved by the loader, which also
// finds a library that the process has already loaded.
std::vector<std::filesystem::path> nvrtc_candidates(const NvrtcPlaces& places);

}  // namespace flashlift::cuda
