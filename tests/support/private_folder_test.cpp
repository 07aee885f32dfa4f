#include "support/private_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace flashlift {
namespace {

namespace fs = std::filesystem;

class PrivateFolders : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("flashlift_private_folder_test." + std::to_string(getpid()));
    fs::create_directory(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string refusal(const fs::path& path) {
    const auto folder = PrivateFolder::open(path);
    return folder.ok() ? "" : folder.error().message;
  }

  fs::path root_;
};

TEST_F(PrivateFolders, AreMadeForThisUserAlone) {
  const mode_t before = umask(0);  // the most permissive
  const auto folder = PrivateFolder::open(root_ / "a" / "b" / "");
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_FALSE(folder->write("f", "content"));
  umask(before);
  for (const fs::path& made : {root_ / "a", root_ / "a" / "b"}) {
    EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all) << made;
  }
  EXPECT_EQ(fs::status(root_ / "a" / "b" / "f").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(folder->read("f", 100), "content");
  ASSERT_EQ(folder->entries().size(), 1);
  EXPECT_EQ(folder->entries()[0].name, "f");
  EXPECT_EQ(folder->entries()[0].bytes, 7);
  folder->remove("f");
  EXPECT_EQ(folder->read("f", 100), std::nullopt);
}

TEST_F(PrivateFolders, OthersFoldersAreRefused) {
  EXPECT_NE(refusal("relative").find("absolute"), std::string::npos);
  EXPECT_FALSE(fs::exists("relative"));
  fs::create_directory(root_ / "open");
  for (const auto write : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(root_ / "open", fs::perms::owner_all | write);
    EXPECT_NE(refusal(root_ / "open").find("chmod"), std::string::npos);
  }
  fs::permissions(root_ / "open", fs::perms::owner_all | fs::perms::group_read | fs::perms::others_read);
  EXPECT_EQ(refusal(root_ / "open"), "");  // users who may only read cannot change what is run
  fs::create_directory_symlink(root_ / "open", root_ / "link");
  EXPECT_NE(refusal(root_ / "link").find("link"), std::string::npos);
  EXPECT_NE(refusal(root_ / "link" / "").find("link"), std::string::npos);
  std::ofstream(root_ / "file") << "x";
  EXPECT_NE(refusal(root_ / "file"), "");
  EXPECT_NE(refusal(root_ / "file" / "folder"), "");
  EXPECT_NE(refusal("/proc/flashlift"), "");
  if (geteuid() == 0) {
    fs::create_directory(root_ / "theirs");
    ASSERT_EQ(chown((root_ / "theirs").c_str(), 12345, 12345), 0);
    EXPECT_NE(refusal(root_ / "theirs").find("another user"), std::string::npos);
  }
}

TEST_F(PrivateFolders, OnlyPlainFilesOfThisUserAreRead) {
  const auto folder = PrivateFolder::open(root_);
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_FALSE(folder->write("f", "content"));
  fs::create_symlink(root_ / "f", root_ / "link");
  fs::create_directory(root_ / "folder");
  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "folder", "pipe", "absent"}) {
    EXPECT_EQ(folder->read(name, 100), std::nullopt) << name;
  }
  EXPECT_EQ(folder->entries().size(), 1);
  EXPECT_EQ(folder->read("f", 6), std::nullopt);  // larger than the given limit
  fs::permissions(root_ / "f", fs::perms::group_write, fs::perm_options::add);
  EXPECT_EQ(folder->read("f", 100), std::nullopt);
}

TEST_F(PrivateFolders, AnotherFolderOfTheSameNameIsNotUsed) {
  const auto folder = PrivateFolder::open(root_ / "a");
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_FALSE(folder->write("f", "ours"));
  fs::rename(root_ / "a", root_ / "b");
  fs::create_directory(root_ / "a");
  std::ofstream(root_ / "a" / "f") << "theirs";
  EXPECT_EQ(folder->read("f", 100), "ours");
}

TEST_F(PrivateFolders, ReadingAFileMakesItYounger) {
  const auto folder = PrivateFolder::open(root_);
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_FALSE(folder->write("f", "x"));
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(10);
  fs::last_write_time(root_ / "f", old);
  const auto before = folder->entries()[0].used;
  ASSERT_TRUE(folder->read("f", 100));
  EXPECT_GT(folder->entries()[0].used - before, std::chrono::hours(9));
}

}  // namespace
}  // namespace flashlift
