#include "support/private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "support/environment.h"
#include "support/error.h"

namespace flashlift {
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

std::chrono::system_clock::time_point time_of(const timespec& time) {
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)));
}

// std::filesystem::create_directories would give others access, depending on the umask.
void make_folders(const std::filesystem::path& path) {
  std::filesystem::path folder;
  for (const std::filesystem::path& part : path) {
    folder /= part;
    mkdir(folder.c_str(), 0700);  // if something else has this name, opening the folder fails
  }
}

}  // namespace

Result<std::filesystem::path> cache_folder() {
  if (const auto folder = environment_value(EnvironmentVariable::kCacheDir)) {
    if (!std::filesystem::path(*folder).is_absolute()) {
      return invalid_argument("FLASHLIFT_CACHE_DIR is {}; expected an absolute path", *folder);
    }
    return std::filesystem::path(*folder);
  }
  // The XDG base directory specification requires relative paths to be ignored.
  const char* cache = secure_getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') {
    return std::filesystem::path(cache) / "flashlift";
  }
  const char* home = secure_getenv("HOME");
  if (home == nullptr || *home != '/') {
    return not_found("the caches lie in HOME, which is {}; set FLASHLIFT_CACHE_DIR to a folder for them",
                     home == nullptr ? "not set" : "no absolute path");
  }
  return std::filesystem::path(home) / ".cache" / "flashlift";
}

Result<PrivateFolder> PrivateFolder::open(const std::filesystem::path& path) {
  if (!path.is_absolute()) {
    return invalid_argument("expected an absolute path, got \"{}\"", path.string());
  }
  std::filesystem::path name = path.lexically_normal();
  if (!name.has_filename()) {
    name = name.parent_path();  // with a slash at the end, a link would be followed
  }
  make_folders(name);
  PrivateFolder folder;
  folder.folder_ = Descriptor(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!folder.folder_.is_open() || fstat(folder.folder_.get(), &status) != 0) {
    const std::error_code failed = last_error();
    std::error_code ignored;
    if (std::filesystem::is_symlink(name, ignored)) {
      return not_found("{} is a link; set FLASHLIFT_CACHE_DIR to the folder that it leads to", name.string());
    }
    return not_found("{} cannot be made or opened: {}; set FLASHLIFT_CACHE_DIR to a folder of your own", name.string(),
                     failed.message());
  }
  if (status.st_uid != geteuid()) {
    return invalid_argument("{} belongs to another user; set FLASHLIFT_CACHE_DIR to a folder of your own",
                            name.string());
  }
  if ((status.st_mode & kOthersMayWrite) != 0) {
    return invalid_argument("other users may write to {}; remove it, or remove their permission (chmod 700)",
                            name.string());
  }
  return folder;
}

std::optional<std::string> PrivateFolder::read(const std::string& name, size_t most_bytes) const {
  // Without O_NONBLOCK, a pipe would wait for a writer.
  const Descriptor file(openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
      (status.st_mode & kOthersMayWrite) != 0 || static_cast<uint64_t>(status.st_size) > most_bytes) {
    return std::nullopt;
  }
  std::string content(static_cast<size_t>(status.st_size), '\0');
  size_t size = 0;
  while (size < content.size()) {
    const ssize_t count = ::read(file.get(), content.data() + size, content.size() - size);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      return std::nullopt;
    }
    size += count > 0 ? static_cast<size_t>(count) : 0;
  }
  futimens(file.get(), nullptr);  // entries() reads the time of use; on a read-only disk it stays old
  return content;
}

std::error_code PrivateFolder::write(const std::string& name, std::string_view content) const {
  TemporaryFile file;
  if (const std::error_code failed = file.create(folder_, 0600)) {
    return failed;
  }
  if (const std::error_code failed = write_fully(file.descriptor(), content)) {
    return failed;
  }
  return file.rename_to(name);
}

void PrivateFolder::remove(const std::string& name) const { unlinkat(folder_.get(), name.c_str(), 0); }

std::vector<PrivateFolder::Entry> PrivateFolder::entries() const {
  std::vector<Entry> found;
  const int copy = openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // closedir() closes this copy
  const auto close_folder = [](DIR* folder) { closedir(folder); };
  const std::unique_ptr<DIR, decltype(close_folder)> folder(copy < 0 ? nullptr : fdopendir(copy));
  if (folder == nullptr) {
    return found;
  }
  while (const dirent* entry = readdir(folder.get())) {
    struct stat status;
    if (fstatat(folder_.get(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode)) {
      found.push_back({entry->d_name, status.st_size, time_of(status.st_mtim)});
    }
  }
  return found;
}

}  // namespace flashlift
