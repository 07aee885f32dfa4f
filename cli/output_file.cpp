#include "cli/output_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <list>

#include "support/error.h"

namespace flashlift::cli {
namespace {

namespace fs = std::filesystem;

// Whether the link stands for an open file, like /dev/stdout and /proc/self/fd/1. The text of such a link need not be a
// path.
bool is_open_file(const fs::path& link) {
  struct statfs system;
  return statfs(link.parent_path().c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

struct FollowedLinks {
  fs::path path;
  bool open_file = false;
};

// The path that a write to `path` would create or change, whether it exists or not.
Result<FollowedLinks> follow_links(const std::string& option, const std::string& name) {
  constexpr int kMostLinks = 40;  // Linux's own limit
  fs::path path = fs::path(name).has_parent_path() ? fs::path(name) : fs::path(".") / name;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code no_link;
    const fs::path text = fs::read_symlink(path, no_link);
    if (no_link) {
      return FollowedLinks{path, false};
    }
    if (is_open_file(path)) {
      return FollowedLinks{path, true};
    }
    path = path.parent_path() / text;  // if `text` is absolute, the result is `text`
  }
  return invalid_argument("{}: cannot write {}: links lead from one to another without an end", option, name);
}

Error cannot_write(const std::string& option, const std::string& name, const std::error_code& why) {
  return invalid_argument("{}: cannot write {}: {}", option, name, why.message());
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

bool is_standard_output(const struct stat& status) {
  struct stat standard;
  const bool takes_anything = S_ISCHR(status.st_mode) && isatty(STDOUT_FILENO) == 0;  // /dev/null
  return !takes_anything && fstat(STDOUT_FILENO, &standard) == 0 && same_file(status, standard);
}

bool has_access_list(const fs::path& path) {
  return getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) >= 0;
}

}  // namespace

Result<OutputFile> OutputFile::find(std::string option, const std::string& path) {
  OutputFile file;
  file.option_ = std::move(option);
  file.name_ = path;
  if (path == "-") {
    file.kind_ = Kind::kStandardOutput;
    return file;
  }
  if (path.empty() || path.find('\0') != std::string::npos) {
    return invalid_argument("{}: expected a file name, got {}", file.option_, path.empty() ? "\"\"" : "a zero byte");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const FollowedLinks followed, follow_links(file.option_, path));
  file.target_ = followed.path;
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT || file.target_.filename().empty()) {
      return cannot_write(file.option_, path, last_error());
    }
    const fs::path folder = file.target_.parent_path();
    if (access(folder.c_str(), W_OK | X_OK) != 0) {
      return cannot_write(file.option_, path, last_error());
    }
    return file;
  }
  file.status_ = status;
  if (S_ISDIR(status.st_mode)) {
    return invalid_argument("{}: {} is a folder; name a file", file.option_, path);
  }
  if (S_ISBLK(status.st_mode) || S_ISSOCK(status.st_mode)) {
    return invalid_argument("{}: {} is a {}; name a file", file.option_, path,
                            S_ISBLK(status.st_mode) ? "block device" : "socket");
  }
  if (cli::is_standard_output(status)) {
    file.kind_ = Kind::kStandardOutput;
  } else if (!S_ISREG(status.st_mode) || followed.open_file) {
    file.kind_ = Kind::kStream;
  }
  if (file.kind_ != Kind::kStandardOutput && access(path.c_str(), W_OK) != 0) {
    return cannot_write(file.option_, path, last_error());
  }
  return file;
}

bool OutputFile::is_same_as(const OutputFile& other) const {
  if (is_standard_output() || other.is_standard_output()) {
    return is_standard_output() && other.is_standard_output();
  }
  if (status_ && other.status_) {
    return !S_ISCHR(status_->st_mode) && same_file(*status_, *other.status_);
  }
  std::error_code ignored;
  return !status_ && !other.status_ && target_.filename() == other.target_.filename() &&
         fs::equivalent(target_.parent_path(), other.target_.parent_path(), ignored);
}

bool OutputFile::is_same_as(const std::string& input_path) const {
  struct stat input;
  return status_ && S_ISREG(status_->st_mode) && stat(input_path.c_str(), &input) == 0 && same_file(*status_, input);
}

// Writes one output in steps: all outputs are prepared, then streams are written, then files get their names.
class OutputWriter {
 public:
  explicit OutputWriter(const Output& output) : file_(output.file), content_(output.content) {}
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;
  ~OutputWriter() {
    if (reserved_ && ftruncate(in_place_.get(), file_.status_->st_size) != 0) {
      // The old content is intact, but followed by zeros: nothing more can be done.
    }
  }

  std::error_code prepare() {
    if (file_.kind_ != OutputFile::Kind::kFile) {
      return {};
    }
    const bool exists = file_.status_.has_value();
    if (exists && (file_.status_->st_nlink > 1 || has_access_list(file_.target_))) {
      return reserve();
    }
    folder_ = Descriptor(open(file_.target_.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder_.is_open()) {
      return last_error();
    }
    if (const std::error_code failed = temporary_.create(folder_, exists ? 0600 : 0666)) {
      return exists ? reserve() : failed;
    }
    if (exists && !take_after(*file_.status_)) {
      temporary_.remove();
      return reserve();
    }
    return write_fully(temporary_.descriptor(), content_);
  }

  std::error_code write_stream() {
    if (file_.kind_ == OutputFile::Kind::kFile) {
      return {};
    }
    const bool standard = file_.kind_ == OutputFile::Kind::kStandardOutput;
    if (standard && std::fflush(stdout) != 0) {
      return last_error();
    }
    // Appends: the content of a file that another process has open must not be overwritten.
    const Descriptor stream(standard ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                     : open(file_.name_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY));
    return stream.is_open() ? write_fully(stream, content_) : last_error();
  }

  Error error(const std::error_code& failed) const { return cannot_write(file_.option_, file_.name_, failed); }

  std::error_code commit() {
    if (temporary_.exists()) {
      const std::error_code failed = temporary_.rename_to(file_.target_.filename());
      if (!failed || !file_.status_) {
        return failed;
      }
      if (const std::error_code no_room = reserve()) {  // for example a mount point, which no file can replace
        return no_room;
      }
    }
    if (!reserved_) {
      return {};
    }
    reserved_ = false;
    if (const std::error_code failed = write_fully(in_place_, content_)) {
      return failed;
    }
    return ftruncate(in_place_.get(), static_cast<off_t>(content_.size())) == 0 ? in_place_.close() : last_error();
  }

 private:
  // Gives the temporary file the mode and owner of the file that it replaces.
  bool take_after(const struct stat& old) const {
    struct stat made;
    const int file = temporary_.descriptor().get();
    return fstat(file, &made) == 0 &&
           ((made.st_uid == old.st_uid && made.st_gid == old.st_gid) || fchown(file, old.st_uid, old.st_gid) == 0) &&
           fchmod(file, old.st_mode & 0777) == 0;
  }

  // Reserves space for the new content in the file itself, whose old content stays until commit().
  std::error_code reserve() {
    in_place_ = Descriptor(open(file_.target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (!in_place_.is_open()) {
      return last_error();
    }
    reserved_ = true;
    return reserve_bytes(in_place_, content_.size());
  }

  const OutputFile& file_;
  std::string_view content_;
  Descriptor folder_;  // that contains the temporary file
  TemporaryFile temporary_;
  Descriptor in_place_;
  bool reserved_ = false;
};

Status write_outputs(std::span<const Output> outputs) {
  std::list<OutputWriter> writers;
  for (const Output& output : outputs) {
    writers.emplace_back(output);
  }
  for (const auto step : {&OutputWriter::prepare, &OutputWriter::write_stream, &OutputWriter::commit}) {
    for (OutputWriter& writer : writers) {
      if (const std::error_code failed = (writer.*step)()) {
        return writer.error(failed);
      }
    }
  }
  return {};
}

Status check_distinct(const OutputFile& a, const OutputFile& b) {
  if (!a.is_same_as(b)) {
    return {};
  }
  return invalid_argument("{} {} and {} {} name the same output; give each a file of its own", a.option_, a.name_,
                          b.option_, b.name_);
}

}  // namespace flashlift::cli
