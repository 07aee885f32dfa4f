#include "support/files.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "support/error.h"

namespace flashlift {
namespace {

// A limit on file sizes and a pipe without a reader end a process by a signal, unless it chose to get an error instead.
// A library must not choose for the whole process: the calling thread therefore blocks both signals, and consumes those
// that it caused.
class SignalsOfWriting {
 public:
  SignalsOfWriting() {
    sigemptyset(&ours_);
    sigaddset(&ours_, SIGXFSZ);
    sigaddset(&ours_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1 || sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &ours_, &before_);
  }
  ~SignalsOfWriting() {
    const int error = errno;
    const timespec at_once{};
    while (!was_pending_ && sigtimedwait(&ours_, nullptr, &at_once) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  SignalsOfWriting(const SignalsOfWriting&) = delete;
  SignalsOfWriting& operator=(const SignalsOfWriting&) = delete;

 private:
  sigset_t ours_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, size_t most) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  struct stat status{};
  if (!file.is_open() || fstat(file.get(), &status) != 0) {
    return not_found("cannot open {}: {}", path.string(), std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    return invalid_argument("{} is a folder; name a file", path.string());
  }
  if (S_ISBLK(status.st_mode) || (S_ISCHR(status.st_mode) && isatty(file.get()) == 0)) {
    return invalid_argument("{} is a device; name a file", path.string());
  }
  const Error too_large = invalid_argument("{} has more than {} bytes", path.string(), most);
  if (S_ISREG(status.st_mode) && static_cast<uint64_t>(status.st_size) > most) {
    return too_large;
  }
  std::string content;
  content.reserve(S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) : 0);
  std::vector<char> piece(size_t{1} << 16);
  while (true) {
    const ssize_t count = ::read(file.get(), piece.data(), piece.size());
    if (count == 0) {
      return content;
    }
    if (count < 0 && errno != EINTR) {
      return not_found("cannot read {}: {}", path.string(), std::strerror(errno));
    }
    content.append(piece.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (content.size() > most) {
      return too_large;
    }
  }
}

std::error_code last_error() { return {errno, std::generic_category()}; }

std::error_code Descriptor::close() {
  const bool failed = is_open() && ::close(release()) != 0;
  return failed ? last_error() : std::error_code{};
}

std::error_code write_fully(const Descriptor& file, std::string_view content) {
  const SignalsOfWriting blocked;
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno != EINTR) {
      return last_error();
    }
    content.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
  return {};
}

std::error_code reserve_bytes(const Descriptor& file, size_t size) {
  const SignalsOfWriting blocked;
  const int failed = size == 0 ? 0 : posix_fallocate(file.get(), 0, static_cast<off_t>(size));
  // Some file systems cannot reserve space. Writing then reports if there is too little.
  return failed == EOPNOTSUPP || failed == EINVAL ? std::error_code{}
                                                  : std::error_code(failed, std::generic_category());
}

std::error_code TemporaryFile::create(const Descriptor& folder, mode_t mode) {
  folder_ = &folder;
  std::random_device random;
  for (;;) {
    const uint64_t number = uint64_t{random()} << 32 | random();
    name_ = fmt::format("{}{:016x}", kTemporaryPrefix, number);
    const int file = openat(folder.get(), name_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
    if (file >= 0) {
      file_ = Descriptor(file);
      return {};
    }
    if (errno != EEXIST && errno != EINTR) {
      return last_error();
    }
  }
}

std::error_code TemporaryFile::rename_to(const std::string& name) {
  std::error_code failed = file_.close();
  if (!failed && renameat(folder_->get(), name_.c_str(), folder_->get(), name.c_str()) != 0) {
    failed = last_error();
  }
  if (failed) {
    unlinkat(folder_->get(), name_.c_str(), 0);
  }
  return failed;
}

void TemporaryFile::remove() {
  if (file_.is_open()) {
    file_ = Descriptor();
    unlinkat(folder_->get(), name_.c_str(), 0);
  }
}

}  // namespace flashlift
