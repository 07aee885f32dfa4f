#include "support/files.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "support/error.h"

namespace flashlift {

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    return invalid_argument("{} is a folder; name a file", path.string());
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    return not_found("cannot open {}: {}", path.string(), std::strerror(errno));
  }
  std::ostringstream content;
  content << stream.rdbuf();
  if (stream.bad()) {
    return not_found("cannot read {}: {}", path.string(), std::strerror(errno));
  }
  return std::move(content).str();
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  static std::atomic<unsigned> counter{0};
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp.{}.{}", getpid(), counter.fetch_add(1));
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    stream.close();
    if (!stream) {
      const std::string reason = std::strerror(errno);
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      return invalid_argument("cannot write {}: {}", path.string(), reason);
    }
  }
  std::error_code code;
  std::filesystem::rename(temporary, path, code);
  if (code) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    return invalid_argument("cannot write {}: {}", path.string(), code.message());
  }
  return {};
}

}  // namespace flashlift
