// Many simultaneous first calls in several processes compile and cache kernels, without a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cuda/compile/cubin_cache.h"
#include "runtime/kernel_cache.h"

namespace flashlift::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kKernels = 20;
constexpr int kThreads = 16;

// Small kernels, because this does not test the compiler.
cuda::KernelSource source_of(int i) {
  cuda::KernelSource source;
  source.name = fmt::format("kernel{}.cu", i);
  source.text = fmt::format("extern \"C\" __global__ void kernel{}(float* x) {{ x[threadIdx.x] *= {}.0f; }}", i, i);
  return source;
}

// Loads kernels as CudaAttention does. Counts those that are not yet in this process's memory.
class Kernels {
 public:
  // The exit code of a process whose threads all load all kernels at the same time.
  int ask_for_all() {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kKernels; ++i) {
          wrong += get((i + thread) % kKernels) ? 0 : 1;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return wrong == 0 && asked_ == kKernels ? 0 : 1;
  }

 private:
  bool get(int i) {
    const cuda::KernelSource source = source_of(i);
    const auto cubin = cache_.get(source.name, [&] {
      ++asked_;
      return cuda::cached_cubin(source);
    });
    if (!cubin.ok() && !reported_.exchange(true)) {
      fmt::print(stderr, "{}: {}\n", source.name, cubin.error().message);
    }
    return cubin.ok() && (*cubin)->find(fmt::format("kernel{}", i)) != std::string::npos;
  }

  KernelCache<std::string> cache_{256};
  std::atomic<int> asked_{0};
  std::atomic<bool> reported_{false};
};

class FirstCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(::testing::TempDir()) / ("flashlift_first_calls" + std::to_string(getpid()));
    fs::remove_all(path_);
    setenv("FLASHLIFT_CACHE_DIR", path_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("FLASHLIFT_CACHE_DIR");
    fs::remove_all(path_);
  }

  static pid_t start() {
    const pid_t child = fork();
    if (child == 0) {
      _exit(Kernels().ask_for_all());
    }
    return child;
  }
  static void expect_success(pid_t child) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  std::vector<fs::path> entries() {
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".cubin") {
        found.push_back(entry.path());
      }
    }
    return found;
  }

  fs::path path_;
};

TEST_F(FirstCalls, OfTwoProcessesAndManyThreadsCompileOnceEach) {
  const pid_t one = start();
  const pid_t other = start();
  expect_success(one);
  expect_success(other);
  EXPECT_EQ(entries().size(), size_t{kKernels});
}

TEST_F(FirstCalls, OutliveKilledProcessesAndTornFiles) {
  const pid_t killed = start();
  // Waits until some kernels are stored, while others are being compiled and written.
  for (int i = 0; i < 3000 && (!fs::exists(path_) || entries().size() < 3); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(killed, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(killed, &status, 0), killed);
  for (const fs::path& entry : entries()) {
    fs::resize_file(entry, fs::file_size(entry) / 2);
  }
  expect_success(start());
  EXPECT_EQ(entries().size(), size_t{kKernels});
  for (const fs::path& entry : entries()) {
    EXPECT_GT(fs::file_size(entry), 1000u) << entry;
  }
}

}  // namespace
}  // namespace flashlift::runtime
