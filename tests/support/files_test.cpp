#include "support/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace flashlift {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("flashlift_files_test." + std::to_string(getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::ptrdiff_t file_count() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  std::filesystem::path folder_;
};

TEST_F(Files, WritesWhatItReads) {
  const std::string content("a\0b\r\n", 5);
  ASSERT_TRUE(write_file_atomically(folder_ / "f", content));
  const auto read = read_file(folder_ / "f");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, content);
}

TEST_F(Files, ReplacesAndLeavesNothingElse) {
  ASSERT_TRUE(write_file_atomically(folder_ / "f", "old"));
  ASSERT_TRUE(write_file_atomically(folder_ / "f", "new"));
  EXPECT_EQ(*read_file(folder_ / "f"), "new");
  EXPECT_EQ(file_count(), 1);
}

TEST_F(Files, MissingFileSaysWhichAndWhy) {
  const auto read = read_file(folder_ / "absent");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(read.error().message.find("absent"), std::string::npos) << read.error().message;
}

TEST_F(Files, FolderIsNotAFile) {
  const auto read = read_file(folder_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(Files, FailedWriteLeavesNoTemporaryFile) {
  EXPECT_FALSE(write_file_atomically(folder_ / "no" / "such" / "folder", "x"));
  std::filesystem::create_directory(folder_ / "target");
  std::ofstream(folder_ / "target" / "inside") << "x";
  EXPECT_FALSE(write_file_atomically(folder_ / "target", "x"));  // a folder that is not empty cannot be replaced
  EXPECT_EQ(file_count(), 1);
}

}  // namespace
}  // namespace flashlift
