// Folders whose contents can be trusted, because only this user can write them.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"
#include "support/files.h"

namespace flashlift {

// FLASHLIFT_CACHE_DIR, or flashlift/ in the user's cache folder (XDG_CACHE_HOME, or .cache in HOME). Fails if the
// variable is not an absolute path, or none is set.
Result<std::filesystem::path> cache_folder();

// An open folder, so that the checked folder is the one that is used, even if its name is given to another one.
class PrivateFolder {
 public:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    std::chrono::system_clock::time_point used;  // when it was last written or read by read()
  };

  // Creates the folder and missing ones above it, for this user alone. Fails if the path is relative or a link, if the
  // folder belongs to another user or others may write to it, and if it cannot be created.
  static Result<PrivateFolder> open(const std::filesystem::path& path);

  // A file's contents. Nothing if there is no such file, if it is larger than `most_bytes`, or if it is not a plain
  // file that belongs to this user and that others cannot write.
  std::optional<std::string> read(const std::string& name, size_t most_bytes) const;
  // Readers see either the old file or the complete new one. Others cannot read it.
  std::error_code write(const std::string& name, std::string_view content) const;
  void remove(const std::string& name) const;
  // The plain files, in no order.
  std::vector<Entry> entries() const;

 private:
  Descriptor folder_;
};

}  // namespace flashlift
