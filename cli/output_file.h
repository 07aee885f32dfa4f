// Where a command's results go: files that appear whole, all of them or none.
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

// What a path given by the user names: standard output (`-`), a device or pipe, or a file, which may not exist yet.
// Links are followed. A file that is replaced keeps its mode and its owner; where a new file cannot take its place
// (hard links, access lists, the folder or the owner forbid it), its content is written anew.
class OutputFile {
 public:
  // Writes nothing. `option` is named in messages. Errors: a folder, a block device, a socket, a folder that is
  // missing, no permission.
  static Result<OutputFile> find(std::string option, const std::string& path);

  bool is_standard_output() const { return kind_ == Kind::kStandardOutput; }
  // Whether both name one file or pipe, in whatever spelling. A device like /dev/null takes what it is given.
  bool is_same_as(const OutputFile& other) const;
  bool is_same_as(const std::string& input_path) const;

 private:
  friend class OutputWriter;
  friend Status check_distinct(const OutputFile& a, const OutputFile& b);
  enum class Kind { kStandardOutput, kStream, kFile };

  std::string option_;
  std::string name_;              // as it was given
  std::filesystem::path target_;  // behind all links
  Kind kind_ = Kind::kFile;
  std::optional<struct stat> status_;  // of what exists
};

struct Output {
  const OutputFile& file;
  std::string_view content;
};

// Errors: one of them cannot be written; then files are as they were, and new ones do not exist.
Status write_outputs(std::span<const Output> outputs);

// Two options of one call must not name the same output.
Status check_distinct(const OutputFile& a, const OutputFile& b);

}  // namespace flashlift::cli
