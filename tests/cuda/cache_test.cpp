#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cuda/compile/cubin_cache.h"

namespace flashlift::cuda {
namespace {

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    // Of its own, since tests may run beside each other.
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(::testing::TempDir()) / ("flashlift_cubin_cache_" + test);
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void overwrite(const std::string& key, const std::string& content) {
    std::ofstream(CubinCache(folder_).path_of(key), std::ios::binary) << content;
  }

  std::filesystem::path folder_;
};

TEST_F(Cache, GivesBackWhatWasWritten) {
  const CubinCache cache(folder_);
  const std::string cubin("\0binary\n\xff code", 14);
  EXPECT_FALSE(cache.read("a").has_value());
  cache.write("a", cubin);
  ASSERT_TRUE(cache.read("a").has_value());
  EXPECT_EQ(*cache.read("a"), cubin);
  EXPECT_FALSE(cache.read("b").has_value());
}

TEST_F(Cache, TornCorruptAndForeignEntriesAreMisses) {
  const CubinCache cache(folder_);
  cache.write("a", std::string(1000, 'x'));
  std::ifstream file(cache.path_of("a"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const size_t length : {size_t{0}, size_t{5}, size_t{40}, whole.size() - 1}) {
    overwrite("a", whole.substr(0, length));
    EXPECT_FALSE(cache.read("a").has_value()) << length;
  }
  std::string flipped = whole;
  flipped.back() = 'y';
  overwrite("a", flipped);
  EXPECT_FALSE(cache.read("a").has_value());
  overwrite("b", whole);  // another key's entry
  EXPECT_FALSE(cache.read("b").has_value());
}

TEST_F(Cache, AnUnwritableFolderIsNoError) {
  const CubinCache cache("/proc/flashlift_cannot_write_here");
  cache.write("a", "x");
  EXPECT_FALSE(cache.read("a").has_value());
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

}  // namespace
}  // namespace flashlift::cuda
