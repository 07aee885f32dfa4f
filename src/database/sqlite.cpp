#include "database/sqlite.h"

#include <dlfcn.h>

#include <optional>
#include <system_error>

#include "support/error.h"
#include "support/lazy.h"

namespace flashlift::database {
namespace {

// From sqlite3.h. These numbers are part of the stable interface.
constexpr int kOk = 0;
constexpr int kReadOnly = 8;
constexpr int kInputOutput = 10;
constexpr int kCorrupt = 11;
constexpr int kFull = 13;
constexpr int kNoDatabase = 26;
constexpr int kRow = 100;
constexpr int kDone = 101;
constexpr int kOpenReadOnly = 0x1;
constexpr int kOpenReadWrite = 0x2;
constexpr int kOpenCreate = 0x4;
constexpr int kOpenFullMutex = 0x10000;
constexpr int kOpenNoFollow = 0x01000000;
void* const kCopied = reinterpret_cast<void*>(intptr_t{-1});  // SQLITE_TRANSIENT

// Enough time for another process to write its few rows.
constexpr int kPatienceMilliseconds = 5000;

// The length limit of a text or a row, equal to the limit of a problem's text.
constexpr int kMostRowBytes = 4 << 20;
constexpr int kLimitLength = 0;  // SQLITE_LIMIT_LENGTH

struct Library {
  int (*open)(const char*, void**, int, const char*);
  int (*close)(void*);
  int (*busy_timeout)(void*, int);
  int (*limit)(void*, int, int);
  int (*prepare)(void*, const char*, int, void**, const char**);
  int (*step)(void*);
  int (*finalize)(void*);
  int (*bind_int64)(void*, int, int64_t);
  int (*bind_double)(void*, int, double);
  int (*bind_text)(void*, int, const char*, int, void*);
  int64_t (*column_int64)(void*, int);
  double (*column_double)(void*, int);
  const unsigned char* (*column_text)(void*, int);
  const char* (*message)(void*);
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The loader's library, or that of the Python environment in which this library is installed:
// lib/python3.N/site-packages/flashlift/lib below its prefix.
void* load() {
  if (void* library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL)) {
    return library;
  }
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&load), &info) == 0 || info.dli_fname == nullptr) {
    return nullptr;
  }
  const std::filesystem::path beside =
      std::filesystem::path(info.dli_fname).parent_path() / "../../../../libsqlite3.so.0";
  return beside.is_absolute() ? dlopen(beside.lexically_normal().c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
}

Result<const Library*> find_library() {
  static constinit Lazy<const std::optional<Library>> lazy;
  const std::optional<Library>& found = lazy.get([]() -> std::optional<Library> {
    void* file = load();
    Library library;
    const bool is_whole =
        file != nullptr && find(file, "sqlite3_open_v2", library.open) && find(file, "sqlite3_close", library.close) &&
        find(file, "sqlite3_busy_timeout", library.busy_timeout) && find(file, "sqlite3_limit", library.limit) &&
        find(file, "sqlite3_prepare_v2", library.prepare) && find(file, "sqlite3_step", library.step) &&
        find(file, "sqlite3_finalize", library.finalize) && find(file, "sqlite3_bind_int64", library.bind_int64) &&
        find(file, "sqlite3_bind_double", library.bind_double) && find(file, "sqlite3_bind_text", library.bind_text) &&
        find(file, "sqlite3_column_int64", library.column_int64) &&
        find(file, "sqlite3_column_double", library.column_double) &&
        find(file, "sqlite3_column_text", library.column_text) && find(file, "sqlite3_errmsg", library.message);
    return is_whole ? std::optional(library) : std::nullopt;
  });
  if (!found) {
    return not_found(
        "libsqlite3.so.0 was not found; the database of tuning results needs it; install it (Debian: libsqlite3-0)");
  }
  return &*found;
}

// Only called while a connection is open, so that the library exists.
const Library& library() { return **find_library(); }

}  // namespace

int64_t Row::integer(int column) const { return library().column_int64(statement_, column); }
double Row::real(int column) const { return library().column_double(statement_, column); }
std::string Row::text(int column) const {
  const unsigned char* text = library().column_text(statement_, column);
  return text == nullptr ? "" : reinterpret_cast<const char*>(text);
}

void Connection::Close::operator()(void* database) const { library().close(database); }

Result<Connection> Connection::open(const std::filesystem::path& file, Access access) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Library* const sqlite, find_library());
  const int flags = access == Access::kRead ? kOpenReadOnly : kOpenReadWrite | kOpenCreate;
  // SQLite refuses links anywhere in the path, but only the file may not be one: ~/.cache may lead to another disk.
  std::error_code unknown;
  const std::filesystem::path folder = std::filesystem::canonical(file.parent_path(), unknown);
  const std::filesystem::path path = unknown ? file : folder / file.filename();
  void* database = nullptr;
  const int code = sqlite->open(path.c_str(), &database, flags | kOpenFullMutex | kOpenNoFollow, nullptr);
  Connection connection(database, file);  // SQLite returns a connection even on failure, to read the error from
  if (code != kOk) {
    return not_found("{}: {}", file.string(), database == nullptr ? "no memory" : sqlite->message(database));
  }
  sqlite->busy_timeout(database, kPatienceMilliseconds);
  sqlite->limit(database, kLimitLength, kMostRowBytes);
  FLASHLIFT_RETURN_IF_ERROR(connection.run("PRAGMA trusted_schema = OFF"));
  return connection;
}

Error Connection::failure(int code) {
  constexpr int kPrimary = 0xff;  // the other bits only give details
  code &= kPrimary;
  fault_ = code == kCorrupt || code == kNoDatabase ? Fault::kCorrupt : Fault::kOther;
  const bool by_folder = code == kReadOnly || code == kInputOutput || code == kFull;
  return not_found("{}: {}{}", file_.string(), library().message(database_.get()),
                   fault_ == Fault::kCorrupt ? "; `flashlift cache clear` removes it"
                   : by_folder               ? "; make room, or set FLASHLIFT_CACHE_DIR to another folder"
                                             : "");
}

Status Connection::run(const std::string& sql, const std::vector<Value>& values,
                       const std::function<void(const Row&)>& on_row) {
  const Library& sqlite = library();
  void* statement = nullptr;
  int code = sqlite.prepare(database_.get(), sql.c_str(), -1, &statement, nullptr);
  const std::unique_ptr<void, int (*)(void*)> owner(statement, sqlite.finalize);
  for (size_t i = 0; i < values.size() && code == kOk; ++i) {
    const int place = static_cast<int>(i) + 1;
    if (const auto* integer = std::get_if<int64_t>(&values[i])) {
      code = sqlite.bind_int64(statement, place, *integer);
    } else if (const auto* real = std::get_if<double>(&values[i])) {
      code = sqlite.bind_double(statement, place, *real);
    } else {
      const std::string& text = std::get<std::string>(values[i]);
      code = sqlite.bind_text(statement, place, text.c_str(), static_cast<int>(text.size()), kCopied);
    }
  }
  if (code != kOk) {
    return failure(code);
  }
  while ((code = sqlite.step(statement)) == kRow) {
    if (on_row) {
      on_row(Row(statement));
    }
  }
  return code == kDone ? Status() : Status(failure(code));
}

}  // namespace flashlift::database
