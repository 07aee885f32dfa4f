#include "cuda/compile/nvrtc_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace flashlift::cuda {
namespace {

namespace fs = std::filesystem;

class NvrtcFiles : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            ("nvrtc_files_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string make(const std::string& path) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << "";
    return (root_ / path).string();
  }

  // The candidates that have a folder, and not only a name.
  static std::vector<std::string> files(const NvrtcPlaces& places) {
    std::vector<std::string> found;
    for (const fs::path& path : nvrtc_candidates(places)) {
      if (path.has_parent_path()) {
        found.push_back(path.string());
      }
    }
    return found;
  }

  fs::path root_;
};

using Files = std::vector<std::string>;

TEST_F(NvrtcFiles, AreFoundBesideTheInstalledPackage) {
  const std::string packages = "lib/python3.11/site-packages/";
  const std::string own = make(packages + "flashlift/lib/libflashlift.so.0");
  const std::string cuda13 = make(packages + "nvidia/cu13/lib/libnvrtc.so.13");
  make(packages + "nvidia/cu13/lib/libnvrtc-builtins.so.13.0");
  const std::string cuda12 = make(packages + "nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  const std::string torchs = make(packages + "torch/lib/libnvrtc-b51b459d.so.12");
  const std::string condas = make("lib/libnvrtc.so.12.4.127");
  EXPECT_EQ(files({.own = own, .environment = {}, .system = {}}), (Files{cuda13, cuda12, torchs, condas}));
}

TEST_F(NvrtcFiles, AreFoundInTheActiveEnvironmentAndInToolkits) {
  const std::string pips = make("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  const std::string condas = make("conda/lib/libnvrtc.so.13");
  const std::string toolkits = make("cuda/lib64/libnvrtc.so.13");
  const NvrtcPlaces places = {.own = root_ / "bin/program",
                              .environment = {root_ / "venv", root_ / "conda"},
                              .system = {"", "", root_ / "cuda"}};
  EXPECT_EQ(files(places), (Files{pips, condas, toolkits}));
}

TEST_F(NvrtcFiles, AreLeftToTheLoaderOtherwise) {
  const std::vector<fs::path> found = nvrtc_candidates({});
  EXPECT_EQ(found, (std::vector<fs::path>{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}));
}

}  // namespace
}  // namespace flashlift::cuda
