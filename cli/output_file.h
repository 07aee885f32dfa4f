// Outputs of a command: either all files appear, each complete, or none.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "flashlift/result.h"
#include "support/files.h"

namespace flashlift::cli {

// The target of a path given by the user: standard output (`-`), a device or pipe, or a file, which need not exist yet.
// Links are followed. A replaced file keeps its mode and owner. If a new file cannot take its place (because of hard
// links, access lists, or the rights of the folder or owner), the old file's content is overwritten.
class OutputFile {
 public:
  // Writes nothing. `option` is named in messages. Fails for a folder, a block device, a socket, a missing folder, or
  // missing permission.
  static Result<OutputFile> find(std::string option, const std::string& path);

  bool is_standard_output() const { return kind_ == Kind::kStandardOutput; }
  // Whether both name the same file or pipe, in any spelling. A device such as /dev/null is not the same as another
  // output, since it accepts both.
  bool is_same_as(const OutputFile& other) const;
  bool is_same_as(const std::string& input_path) const;

 private:
  friend class OutputWriter;
  friend Status check_distinct(const OutputFile& a, const OutputFile& b);
  enum class Kind { kStandardOutput, kStream, kFile };

  std::string option_;
  std::string name_;              // as given
  std::filesystem::path target_;  // with all links followed
  Kind kind_ = Kind::kFile;
  std::optional<struct stat> status_;  // of an existing file
};

struct Output {
  const OutputFile& file;
  std::string_view content;
};

// If one of them cannot be written, this fails, existing files keep their content, and no new file is created.
Status write_outputs(std::span<const Output> outputs);

// Refuses two options of one call that name the same output.
Status check_distinct(const OutputFile& a, const OutputFile& b);

}  // namespace flashlift::cli
