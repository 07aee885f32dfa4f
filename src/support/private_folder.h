// Folders whose content may be trusted, because nobody but this user can have put it there.
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

// FLASHLIFT_CACHE_DIR, or flashlift/ in the user's cache folder (XDG_CACHE_HOME, or .cache in HOME).
// Errors: the variable that counts is no absolute path, or none is set.
Result<std::filesystem::path> cache_folder();

// An open folder, so that what was checked is what is used even if its name is given to another one.
class PrivateFolder {
 public:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    std::chrono::system_clock::time_point used;  // when it was last written or read by read()
  };

  // Makes the folder, and those above it that are missing, for this user alone. Errors: the path is relative or a link;
  // the folder is another user's, or others may write to it; it cannot be made.
  static Result<PrivateFolder> open(const std::filesystem::path& path);

  // A file's content. Nothing where there is no such file, it is larger than `most_bytes`, or it is not a plain file of
  // this user that nobody else may write.
  std::optional<std::string> read(const std::string& name, size_t most_bytes) const;
  // Readers see the old file or the new one, never a part; nobody else may read it.
  std::error_code write(const std::string& name, std::string_view content) const;
  void remove(const std::string& name) const;
  // The plain files, in no order.
  std::vector<Entry> entries() const;

 private:
  Descriptor folder_;
};

}  // namespace flashlift
