#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "cuda/compile/cubin_cache.h"
#include "cuda/compile/nvrtc_version.h"

namespace flashlift::cuda {
namespace {

namespace fs = std::filesystem;

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    // Each test has its own folder, since tests may run at the same time.
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    path_ = fs::path(::testing::TempDir()) / ("flashlift_cubin_cache_" + test + std::to_string(getpid()));
    fs::remove_all(path_);
  }
  void TearDown() override { fs::remove_all(path_); }

  CubinCache open(int64_t most_bytes = CubinCache::kMostBytes) {
    auto folder = PrivateFolder::open(path_);
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    return CubinCache(*std::move(folder), most_bytes);
  }
  fs::path path_of(const std::string& key) { return path_ / CubinCache::file_name(key); }
  void overwrite(const std::string& key, const std::string& content) {
    std::ofstream(path_of(key), std::ios::binary) << content;
  }
  void make_older(const fs::path& path, int hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  }

  fs::path path_;
};

TEST_F(Cache, GivesBackWhatWasWritten) {
  const CubinCache cache = open();
  const std::string cubin("\0binary\n\xff code", 14);
  EXPECT_FALSE(cache.read("a").has_value());
  cache.write("a", cubin);
  ASSERT_TRUE(cache.read("a").has_value());
  EXPECT_EQ(*cache.read("a"), cubin);
  EXPECT_FALSE(cache.read("b").has_value());
}

TEST_F(Cache, TornCorruptAndForeignEntriesAreMisses) {
  const CubinCache cache = open();
  cache.write("a", std::string(1000, 'x'));
  std::ifstream file(path_of("a"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (size_t length = 0; length < whole.size(); length += 29) {
    overwrite("a", whole.substr(0, length));
    EXPECT_FALSE(cache.read("a").has_value()) << length;
  }
  for (size_t i = 0; i < whole.size(); i += 13) {
    std::string flipped = whole;
    flipped[i] ^= 1;
    overwrite("a", flipped);
    EXPECT_FALSE(cache.read("a").has_value()) << i;
  }
  overwrite("a", whole + "x");
  EXPECT_FALSE(cache.read("a").has_value());
  overwrite("a", whole);
  EXPECT_TRUE(cache.read("a").has_value());
  overwrite("b", whole);  // another key's entry
  EXPECT_FALSE(cache.read("b").has_value());
  fs::create_symlink(path_of("a"), path_of("c"));
  EXPECT_FALSE(cache.read("c").has_value());
}

TEST_F(Cache, HoldsAsMuchAsItMay) {
  const CubinCache cache = open(10 * 1100);
  for (int i = 0; i < 20; ++i) {
    const std::string key = "k" + std::to_string(i);
    cache.write(key, std::string(1000, 'x'));
    make_older(path_of(key), 100 - i);
    if (i >= 1) {
      EXPECT_TRUE(cache.read("k1").has_value()) << i;  // entries in use stay
      make_older(path_of("k1"), 1);
    }
  }
  EXPECT_FALSE(cache.read("k0").has_value());
  EXPECT_TRUE(cache.read("k19").has_value());
  EXPECT_EQ(std::distance(fs::directory_iterator(path_), fs::directory_iterator()), 10);
}

TEST_F(Cache, RemovesWhatWritersLeft) {
  const CubinCache cache = open(1);
  for (const char* name : {".flashlift-00", "k.cubin.tmp.1.2", ".flashlift-01", "notes.txt"}) {
    std::ofstream(path_ / name) << "left";
    make_older(path_ / name, 2);
  }
  make_older(path_ / ".flashlift-01", 0);  // still being written
  cache.write("a", "x");
  EXPECT_FALSE(fs::exists(path_ / ".flashlift-00") || fs::exists(path_ / "k.cubin.tmp.1.2"));
  EXPECT_TRUE(fs::exists(path_ / ".flashlift-01"));
  EXPECT_TRUE(fs::exists(path_ / "notes.txt"));  // not the cache's
}

TEST_F(Cache, FullDiskIsNoErrorAndLeavesNothing) {
  const CubinCache cache = open();
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 100, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  cache.write("a", std::string(1000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(cache.read("a").has_value());
  EXPECT_TRUE(fs::is_empty(path_));
}

// Changes some variables of the environment, as long as this object exists.
class Environment {
 public:
  explicit Environment(const std::map<std::string, const char*>& changes) {
    for (const auto& [name, value] : changes) {
      const char* old = std::getenv(name.c_str());
      before_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      set(name, value ? value->c_str() : nullptr);
    }
  }

 private:
  static void set(const std::string& name, const char* value) {
    value == nullptr ? unsetenv(name.c_str()) : setenv(name.c_str(), value, 1);
  }
  std::map<std::string, std::optional<std::string>> before_;
};

std::string folder_for(const char* own, const char* xdg, const char* home) {
  const Environment environment({{"FLASHLIFT_CACHE_DIR", own}, {"XDG_CACHE_HOME", xdg}, {"HOME", home}});
  const auto folder = cache_folder();
  return folder.ok() ? folder->string() : "error: " + folder.error().message;
}

TEST(CacheFolder, IsNeverOneThatAllUsersShare) {
  EXPECT_EQ(folder_for("/a/b", "/c", "/home/x"), "/a/b");
  EXPECT_EQ(folder_for(nullptr, "/c", "/home/x"), "/c/flashlift");
  EXPECT_EQ(folder_for("", "", "/home/x"), "/home/x/.cache/flashlift");
  EXPECT_EQ(folder_for(nullptr, "relative", "/home/x"), "/home/x/.cache/flashlift");
  for (const char* none : {static_cast<const char*>(nullptr), "", "relative", "."}) {
    EXPECT_TRUE(folder_for(nullptr, nullptr, none).starts_with("error: the caches lie in HOME"));
  }
  EXPECT_NE(folder_for("relative", "/c", "/home/x").find("FLASHLIFT_CACHE_DIR is relative"), std::string::npos);
}

TEST(CubinKey, DependsOnEverything) {
  KernelSource source;
  source.name = "a.cu";
  source.text = "text";
  source.options = {"-DX=1"};
  const std::string key = cubin_key(source, "13.0");
  EXPECT_EQ(cubin_key(source, "13.0"), key);
  EXPECT_NE(cubin_key(source, "12.9"), key);
  for (const auto& change : std::vector<std::function<void(KernelSource&)>>{
           [](KernelSource& s) { s.text = "texu"; }, [](KernelSource& s) { s.options = {"-DX=2"}; },
           [](KernelSource& s) { s.architecture = 90; }, [](KernelSource& s) { s.architecture_specific = true; },
           [](KernelSource& s) { s.headers.emplace_back("h", "t"); }}) {
    KernelSource changed = source;
    change(changed);
    EXPECT_NE(cubin_key(changed, "13.0"), key);
  }
}

TEST_F(Cache, OfAPackageIsReadWithoutACompiler) {
  KernelSource source;
  source.name = "a.cu";
  EXPECT_EQ(packaged_cubin(path_, source), std::nullopt);
  EXPECT_FALSE(open().write(cubin_key(source, "13.0"), "code"));
  EXPECT_EQ(packaged_cubin(path_, source), std::nullopt);
  std::ofstream(path_ / kPackagedVersion) << "13.0";
  EXPECT_EQ(packaged_cubin(path_, source), "code");
  overwrite(cubin_key(source, "13.0"), "something else");
  EXPECT_EQ(packaged_cubin(path_, source), std::nullopt);
  source.architecture = 90;
  EXPECT_EQ(packaged_cubin(path_, source), std::nullopt);
}

class NvrtcVersion : public Cache {
 protected:
  PrivateFolder folder() {
    auto folder = PrivateFolder::open(path_);
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    return *std::move(folder);
  }
};

TEST_F(NvrtcVersion, IsRememberedUntilTheFileChanges) {
  const PrivateFolder kept = folder();
  const fs::path library = path_ / "libnvrtc.so.13";
  EXPECT_EQ(remembered_nvrtc_version(kept, library), std::nullopt);
  remember_nvrtc_version(kept, library, "13.0");  // the library's file does not exist
  EXPECT_EQ(remembered_nvrtc_version(kept, library), std::nullopt);
  std::ofstream(library) << "one";
  remember_nvrtc_version(kept, library, "13.0");
  EXPECT_EQ(remembered_nvrtc_version(kept, library), "13.0");
  EXPECT_EQ(remembered_nvrtc_version(kept, path_ / "libnvrtc.so.12"), std::nullopt);
  EXPECT_EQ(remembered_nvrtc_version(kept, "libnvrtc.so.13"), std::nullopt);
  make_older(library, 1);
  EXPECT_EQ(remembered_nvrtc_version(kept, library), std::nullopt);
  remember_nvrtc_version(kept, library, "13.1");
  EXPECT_EQ(remembered_nvrtc_version(kept, library), "13.1");
  std::ofstream(library) << "two, longer";
  EXPECT_EQ(remembered_nvrtc_version(kept, library), std::nullopt);
}

TEST_F(NvrtcVersion, TornAndForeignRecordsAreMisses) {
  const PrivateFolder kept = folder();
  const fs::path library = path_ / "libnvrtc.so.13";
  std::ofstream(library) << "one";
  remember_nvrtc_version(kept, library, "13.0");
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (entry.path().extension() == ".nvrtc") {
      const auto size = fs::file_size(entry.path());
      for (const auto shorter : {size - 1, size - 2, size - 5, size - 6, uintmax_t{0}}) {
        fs::resize_file(entry.path(), shorter);
        EXPECT_EQ(remembered_nvrtc_version(kept, library), std::nullopt) << shorter;
      }
      std::ofstream(entry.path()) << "flashlift-nvrtc-1 of another file\n13.0";
      EXPECT_EQ(remembered_nvrtc_version(kept, library), std::nullopt);
    }
  }
}

// In a process of its own, because libraries that other tests loaded stay loaded.
TEST_F(NvrtcVersion, MachineCodeFromDiskNeedsNoCompiler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  path_ = fs::path(::testing::TempDir()) / "flashlift_machine_code_from_disk";  // the same in both processes
  setenv("FLASHLIFT_CACHE_DIR", path_.c_str(), 1);
  KernelSource source;
  source.name = "nothing.cu";
  source.text = "extern \"C\" __global__ void nothing() {}";
  const auto is_loaded = [] {
    std::ifstream maps("/proc/self/maps");
    const std::string all((std::istreambuf_iterator<char>(maps)), {});
    return all.find("/libnvrtc.") != std::string::npos;
  };
  EXPECT_EXIT(
      {
        fs::remove_all(path_);
        std::exit(cached_cubin(source).ok() && is_loaded() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(cached_cubin(source).ok() && !is_loaded() ? 0 : 1), ::testing::ExitedWithCode(0), "");
  unsetenv("FLASHLIFT_CACHE_DIR");
}

}  // namespace
}  // namespace flashlift::cuda
