#include "support/shared_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "support/error.h"
#include "support/files.h"

namespace flashlift {
namespace {

bool read_at(const Descriptor& file, void* into, size_t size, uint64_t offset) {
  return pread(file.get(), into, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

}  // namespace

Status verify_library_is_whole(const std::filesystem::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat status{};
  if (!file.is_open() || fstat(file.get(), &status) != 0) {
    return {};
  }
  if (!S_ISREG(status.st_mode)) {
    return invalid_argument("{} is not a file but a folder, a pipe or a device; name a shared library", path.string());
  }
  Elf64_Ehdr header{};
  if (!read_at(file, &header, sizeof(header), 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return {};
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  uint64_t needed = size;
  if (!read_at(file, segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff)) {
    needed = header.e_phoff + segments.size() * sizeof(Elf64_Phdr);
  }
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD) {
      uint64_t end = 0;
      needed = std::max(needed, __builtin_add_overflow(segment.p_offset, segment.p_filesz, &end) ? UINT64_MAX : end);
    }
  }
  if (needed > size) {
    return invalid_argument("{} is cut off: it has {} bytes, but its header gives {}; copy or install it again",
                            path.string(), size, needed);
  }
  return {};
}

Result<void*> load_library(const std::filesystem::path& path, int mode) {
  if (path.has_parent_path()) {  // otherwise the loader searches for it
    FLASHLIFT_RETURN_IF_ERROR(verify_library_is_whole(path));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | mode);
  if (library == nullptr) {
    return not_found("{}", dlerror());
  }
  return library;
}

}  // namespace flashlift
