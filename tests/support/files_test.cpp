#include "support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

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

// Replaces a file as other programs do.
std::error_code replace(const std::filesystem::path& folder, const std::string& name, std::string_view content,
                        mode_t mode = 0600) {
  const Descriptor opened(open(folder.c_str(), O_PATH | O_DIRECTORY));
  TemporaryFile file;
  if (const std::error_code failed = file.create(opened, mode)) {
    return failed;
  }
  if (const std::error_code failed = write_fully(file.descriptor(), content)) {
    return failed;
  }
  return file.rename_to(name);
}

TEST_F(Files, WritesWhatItReads) {
  const std::string content("a\0b\r\n", 5);
  ASSERT_FALSE(replace(folder_, "f", content));
  const auto read = read_file(folder_ / "f");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, content);
}

TEST_F(Files, ReadsNoDeviceThatNeverEnds) {
  for (const char* device : {"/dev/zero", "/dev/urandom", "/dev/full"}) {
    const auto read = read_file(device);
    ASSERT_FALSE(read.ok()) << device;
    EXPECT_EQ(read.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(read.error().message, std::string(device) + " is a device; name a file");
  }
}

TEST_F(Files, ReadsNoMoreThanItIsToldTo) {
  ASSERT_FALSE(replace(folder_, "f", std::string(1000, 'x')));
  EXPECT_EQ(read_file(folder_ / "f", 1000)->size(), 1000U);
  EXPECT_EQ(read_file(folder_ / "f", 999).error().message, (folder_ / "f").string() + " has more than 999 bytes");
  // A pipe shows its size only at its end, and this pipe has none.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread writer([&] {
    const std::string content(1 << 16, 'x');
    const Descriptor end(ends[1]);
    while (!write_fully(end, content)) {
    }
  });
  {
    const Descriptor end(ends[0]);
    EXPECT_FALSE(read_file("/dev/fd/" + std::to_string(ends[0]), 1 << 20).ok());
  }
  writer.join();
}

TEST_F(Files, ReplacesAndLeavesNothingElse) {
  ASSERT_FALSE(replace(folder_, "f", "old"));
  ASSERT_FALSE(replace(folder_, "f", "new"));
  EXPECT_EQ(*read_file(folder_ / "f"), "new");
  EXPECT_EQ(file_count(), 1);
}

TEST_F(Files, TemporaryFilesAreTheirMakersOwn) {
  const Descriptor opened(open(folder_.c_str(), O_PATH | O_DIRECTORY));
  TemporaryFile one;
  TemporaryFile two;
  ASSERT_FALSE(one.create(opened, 0600) || two.create(opened, 0600));
  EXPECT_EQ(file_count(), 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.status().permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    EXPECT_TRUE(entry.path().filename().string().starts_with(kTemporaryPrefix)) << entry.path();
  }
  one.remove();
  EXPECT_EQ(file_count(), 1);
}

TEST_F(Files, LimitOfFileSizesIsAnError) {
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::error_code failed = replace(folder_, "f", std::string(10000, 'x'));
  const Descriptor file(open((folder_ / "g").c_str(), O_CREAT | O_WRONLY, 0600));
  const std::error_code reserved = reserve_bytes(file, 10000);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(failed, std::errc::file_too_large) << failed.message();
  EXPECT_EQ(reserved, std::errc::file_too_large) << reserved.message();
  EXPECT_EQ(file_count(), 1);  // g
}

TEST_F(Files, PipeWithoutReaderIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor writing(ends[1]);
  close(ends[0]);
  EXPECT_EQ(write_fully(writing, "x"), std::errc::broken_pipe);
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
  EXPECT_EQ(replace(folder_ / "no", "f", "x"), std::errc::bad_file_descriptor);
  std::filesystem::create_directory(folder_ / "target");
  EXPECT_EQ(replace(folder_, "target", "x"), std::errc::is_a_directory);
  EXPECT_EQ(file_count(), 1);
}

}  // namespace
}  // namespace flashlift
