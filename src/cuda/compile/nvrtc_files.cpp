#include "cuda/compile/nvrtc_files.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace flashlift::cuda {
namespace {

namespace fs = std::filesystem;

// Whether this is libnvrtc.so or a version of it, but not libnvrtc-builtins.so. Older wheels of PyTorch have a hash in
// the name: libnvrtc-b51b459d.so.12.
bool is_nvrtc(const std::string& name) {
  return name.starts_with("libnvrtc") && name.find(".so") != std::string::npos &&
         !name.starts_with("libnvrtc-builtins") && name.find(".alt.") == std::string::npos;
}

// Adds the NVRTC files in a folder, newest first.
void add_folder(const fs::path& folder, std::vector<fs::path>& found) {
  std::vector<fs::path> here;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_nvrtc(at->path().filename().string())) {
      here.push_back(at->path());
    }
  }
  std::ranges::sort(here, std::greater{});
  found.insert(found.end(), here.begin(), here.end());
}

// The folders in `parent` whose names start with `start`, last one first.
std::vector<fs::path> folders(const fs::path& parent, const std::string& start) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(start)) {
      found.push_back(at->path());
    }
  }
  std::ranges::sort(found, std::greater{});
  return found;
}

void add_site_packages(const fs::path& packages, std::vector<fs::path>& found) {
  add_folder(packages / "nvidia/cu13/lib", found);        // nvidia-cuda-nvrtc
  add_folder(packages / "nvidia/cuda_nvrtc/lib", found);  // nvidia-cuda-nvrtc-cu12
  add_folder(packages / "torch/lib", found);
}

void add_environment(const fs::path& prefix, std::vector<fs::path>& found) {
  add_folder(prefix / "lib", found);  // conda's cuda-nvrtc
  for (const fs::path& python : folders(prefix / "lib", "python3")) {
    add_site_packages(python / "site-packages", found);
  }
}

}  // namespace

NvrtcPlaces nvrtc_places() {
  const auto folder = [](const char* name) {
    const char* value = secure_getenv(name);
    return value != nullptr && value[0] == '/' ? fs::path(value) : fs::path();
  };
  NvrtcPlaces places = {
      .own = {},
      .environment = {folder("VIRTUAL_ENV"), folder("CONDA_PREFIX")},
      .system = {folder("CUDA_HOME"), folder("CUDA_PATH"), "/usr/local/cuda"},
  };
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&nvrtc_places), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code error;
    places.own = fs::canonical(info.dli_fname, error);
  }
  return places;
}

std::vector<fs::path> nvrtc_candidates(const NvrtcPlaces& places) {
  std::vector<fs::path> found;
  for (fs::path folder = places.own.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (folder.filename() == "site-packages" || folder.filename() == "dist-packages") {
      add_site_packages(folder, found);
      add_folder(folder.parent_path().parent_path(), found);  // conda's lib, from lib/python3.x/site-packages
    }
  }
  for (const fs::path& prefix : places.environment) {
    if (!prefix.empty()) {
      add_environment(prefix, found);
    }
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
    found.emplace_back(name);
  }
  for (const fs::path& toolkit : places.system) {
    if (!toolkit.empty()) {
      add_folder(toolkit / "lib64", found);
      add_folder(toolkit / "lib", found);
    }
  }
  return found;
}

}  // namespace flashlift::cuda
