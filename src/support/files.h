// Reads whole files, and writes new ones.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "flashlift/result.h"

namespace flashlift {

inline constexpr size_t kMostFileBytes = (size_t{1} << 31) - 1;

// The contents of a file or a pipe. Errors: kInvalidArgument for folders, for devices, some of which never end (a
// terminal may be read), and for more than `most` bytes.
Result<std::string> read_file(const std::filesystem::path& path, size_t most = kMostFileBytes);

// An open file or folder, closed with the object.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { [[maybe_unused]] const std::error_code ignored = close(); }

  bool is_open() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  // Some file systems report only here that there was no space.
  std::error_code close();

 private:
  int number_ = -1;
};

// errno as an error code.
std::error_code last_error();

// Writes all of `content`. A limit on file sizes (EFBIG) and a pipe without a reader (EPIPE) are errors, too, not
// signals.
std::error_code write_fully(const Descriptor& file, std::string_view content);

// Ensures that the first `size` bytes of a file can be written, without changing its content (it may become longer).
std::error_code reserve_bytes(const Descriptor& file, size_t size);

inline constexpr std::string_view kTemporaryPrefix = ".flashlift-";

// A file with a new, unpredictable name. It is removed at the end, unless rename_to() gives it a name. Readers of that
// name then see either the old file or the complete new one.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  ~TemporaryFile() { remove(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  // `folder` must stay open as long as the file is temporary.
  std::error_code create(const Descriptor& folder, mode_t mode);
  bool exists() const { return file_.is_open(); }
  const Descriptor& descriptor() const { return file_; }
  // Replaces `name` in the folder. On failure, removes the temporary file.
  std::error_code rename_to(const std::string& name);
  void remove();

 private:
  const Descriptor* folder_ = nullptr;
  std::string name_;
  Descriptor file_;
};

}  // namespace flashlift
