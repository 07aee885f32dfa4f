#include "database/tuning_database.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <system_error>
#include <unordered_map>

#include "database/sqlite.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/fork_guard.h"
#include "support/lazy.h"
#include "support/log.h"
#include "support/private_folder.h"
#include "support/tuning_policies.h"
#include "support/version.h"

namespace flashlift {

std::string to_string(const Tuning& tuning) {
  std::string text = tuning.implementation;
  const auto add = [&](const char* name, int64_t value) {
    if (value > 0) {
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
    }
  };
  add("q_tile", tuning.q_tile);
  add("kv_tile", tuning.kv_tile);
  add("splits", tuning.splits);
  add("threads", tuning.threads);
  return text.empty() ? "heuristics" : text;
}

namespace database {
namespace {

// Increased when the table's columns change; stored as SQLite's user_version.
constexpr int64_t kFormat = 1;
// A machine tunes some hundreds of problems. A file with more entries is not a valid database.
constexpr int64_t kMostEntries = 20'000;

// The limit of all texts that are read. An entry usually has some hundred bytes.
constexpr size_t kMostTextBytes = size_t{8} << 20;

constexpr const char* kTable =
    "tuned (version TEXT, device TEXT, backward INTEGER, problem TEXT, batch INTEGER, "
    "q_len INTEGER, kv_len INTEGER, implementation TEXT, q_tile INTEGER, kv_tile INTEGER, splits INTEGER, "
    "threads INTEGER, ms REAL, heuristics_ms REAL, tuned_at INTEGER, "
    "PRIMARY KEY (version, device, backward, problem, batch, q_len, kv_len))";
constexpr const char* kSelect =
    "SELECT version, device, backward, problem, batch, q_len, kv_len, implementation, q_tile, kv_tile, splits, "
    "threads, ms, heuristics_ms, tuned_at FROM tuned ORDER BY tuned_at DESC LIMIT ?";
// No entry's version: rows that are written and removed again in one transaction.
constexpr const char* kTrialVersion = "trial";
constexpr const char* kDeleteTrial = "DELETE FROM tuned WHERE version = ?";
constexpr const char* kInsert = "INSERT OR REPLACE INTO tuned VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

TunedEntry entry_of(const Row& row) {
  return {.version = row.text(0),
          .device = row.text(1),
          .backward = row.integer(2) != 0,
          .problem = row.text(3),
          .batch = row.integer(4),
          .q_len = row.integer(5),
          .kv_len = row.integer(6),
          .tuning = {.implementation = row.text(7),
                     .q_tile = row.integer(8),
                     .kv_tile = row.integer(9),
                     .splits = row.integer(10),
                     .threads = static_cast<int>(std::clamp<int64_t>(row.integer(11), 0, kMostThreads))},
          .ms = row.real(12),
          .heuristics_ms = row.real(13),
          .tuned_at = row.integer(14)};
}

std::vector<Value> values_of(const TunedEntry& e) {
  const Tuning& t = e.tuning;
  return {e.version, e.device,         int64_t{e.backward},
          e.problem, e.batch,          e.q_len,
          e.kv_len,  t.implementation, t.q_tile,
          t.kv_tile, t.splits,         int64_t{t.threads},
          e.ms,      e.heuristics_ms,  e.tuned_at};
}

Result<int64_t> format_of(Connection& connection) {
  int64_t format = 0;
  FLASHLIFT_RETURN_IF_ERROR(
      connection.run("PRAGMA user_version", {}, [&](const Row& row) { format = row.integer(0); }));
  return format;
}

Error other_format(const std::filesystem::path& file, int64_t format) {
  return unsupported("{} has format {}, and this version of Flashlift reads {}; `flashlift cache clear` removes it",
                     file.string(), format, kFormat);
}

// Whether the file contains only our table. Views and triggers are programs that may run forever.
Result<bool> is_ours(Connection& connection) {
  const std::string own = fmt::format("CREATE TABLE {}", kTable);
  int64_t tables = 0;
  bool is_own = false;
  FLASHLIFT_RETURN_IF_ERROR(connection.run("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL", {},
                                           [&](const Row& row) { is_own = ++tables == 1 && row.text(0) == own; }));
  return is_own;
}

Error not_ours(const std::filesystem::path& file) {
  return unsupported("{} holds other tables than Flashlift's; `flashlift cache clear` removes it", file.string());
}

Result<std::vector<TunedEntry>> read_all(const std::filesystem::path& file) {
  // store_tuned() creates the file before SQLite writes into it, and a full disk leaves it so.
  if (std::error_code unknown; std::filesystem::is_empty(file, unknown)) {
    return std::vector<TunedEntry>();
  }
  // A process that was killed while it stored leaves a journal. SQLite undoes its changes before it reads, for which it
  // must write. In a folder of other users, the journal might be theirs.
  const bool is_private = PrivateFolder::open(file.parent_path()).ok();
  FLASHLIFT_ASSIGN_OR_RETURN(Connection connection, Connection::open(file, is_private ? Connection::Access::kWrite
                                                                                      : Connection::Access::kRead));
  FLASHLIFT_ASSIGN_OR_RETURN(const int64_t format, format_of(connection));
  if (format != kFormat) {
    return other_format(file, format);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const bool is_own, is_ours(connection));
  if (!is_own) {
    return not_ours(file);
  }
  std::vector<TunedEntry> entries;
  size_t bytes = 0;
  FLASHLIFT_RETURN_IF_ERROR(connection.run(kSelect, {kMostEntries}, [&](const Row& row) {
    TunedEntry entry = entry_of(row);
    bytes += entry.problem.size() + entry.device.size() + entry.version.size() + entry.tuning.implementation.size();
    if (bytes <= kMostTextBytes) {
      entries.push_back(std::move(entry));
    }
  }));
  return entries;
}

Status write(Connection& connection, const std::filesystem::path& file, const std::vector<TunedEntry>& entries) {
  FLASHLIFT_RETURN_IF_ERROR(connection.run("BEGIN IMMEDIATE"));  // rolled back if the connection closes
  FLASHLIFT_ASSIGN_OR_RETURN(const int64_t format, format_of(connection));
  if (format != 0 && format != kFormat) {
    return other_format(file, format);
  }
  FLASHLIFT_RETURN_IF_ERROR(connection.run(fmt::format("CREATE TABLE IF NOT EXISTS {}", kTable)));
  FLASHLIFT_ASSIGN_OR_RETURN(const bool is_own, is_ours(connection));
  if (!is_own) {
    return not_ours(file);
  }
  FLASHLIFT_RETURN_IF_ERROR(connection.run(fmt::format("PRAGMA user_version = {}", kFormat)));
  for (const TunedEntry& entry : entries) {
    FLASHLIFT_RETURN_IF_ERROR(connection.run(kInsert, values_of(entry)));
  }
  FLASHLIFT_RETURN_IF_ERROR(connection.run(kDeleteTrial, {std::string(kTrialVersion)}));
  return connection.run("COMMIT");
}

void remove_file(const std::filesystem::path& file) {
  std::error_code ignored;
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    std::filesystem::remove(file.string() + suffix, ignored);
  }
}

// Changes whenever the file changes.
using Stamp = std::array<int64_t, 4>;
std::optional<Stamp> stamp_of(const std::filesystem::path& file) {
  struct stat status;
  // The file must belong to this user, and others must not be able to write it, because its contents decide what runs.
  if (lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::nullopt;
  }
  return Stamp{static_cast<int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

// Errors: a path on which this user cannot look for the file.
Result<bool> is_there(const std::filesystem::path& file) {
  struct stat status;
  if (lstat(file.c_str(), &status) == 0) {
    return true;
  }
  const std::error_code failed = last_error();
  if (failed == std::errc::no_such_file_or_directory) {
    return false;
  }
  return not_found("{} cannot be opened: {}; set FLASHLIFT_CACHE_DIR to a folder of your own", file.string(),
                   failed.message());
}

Status verify_file(const std::filesystem::path& file) {
  if (!stamp_of(file)) {
    return not_found("{} is not a file of this user that nobody else may write to; `flashlift cache clear` removes it",
                     file.string());
  }
  return {};
}

// Entries of this version, by the fields that a compile knows; the latest first.
struct Snapshot {
  std::optional<Stamp> stamp;
  std::unordered_map<std::string, std::vector<TunedEntry>> entries;
};

std::string key_of(const std::string& device, bool backward, const std::string& problem) {
  return device + (backward ? "\nbackward\n" : "\nforward\n") + problem;
}

}  // namespace

TuningPolicy effective(TuningPolicy policy) {
  if (policy != TuningPolicy::kFromEnvironment) {
    return policy;
  }
  const auto value = environment_value(EnvironmentVariable::kTuning);
  // check_environment() refuses other words. Callers that skip this check get no database.
  return value ? tuning_policy_of(*value).value_or(TuningPolicy::kOff) : TuningPolicy::kWrite;
}

std::string problem_class(const Problem& problem) {
  Problem any = problem;
  any.batch = 1;
  any.dropout_words = false;
  any.q_len = 1;
  any.kv_len = std::max<int64_t>(problem.page_size, 1);
  return print(any);
}

TunedEntry make_entry(const std::string& device, bool backward, const Problem& problem) {
  return {
      .version = version(),
      .device = device,
      .backward = backward,
      .problem = problem_class(problem),
      .batch = problem.batch,
      .q_len = problem.q_len,
      .kv_len = problem.kv_len,
      .tuned_at = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                      .count()};
}

Result<std::filesystem::path> tuning_file() {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path folder, cache_folder());
  return folder / "tuning.sqlite3";
}

bool anything_tuned() {
  const Result<std::filesystem::path> file = tuning_file();
  return file.ok() && stamp_of(*file);
}

std::optional<TunedEntry> find_tuned(const std::string& device, bool backward, const Problem& problem,
                                     bool lengths_known) {
  const Result<std::filesystem::path> file = tuning_file();
  const std::optional<Stamp> stamp = file.ok() ? stamp_of(*file) : std::nullopt;
  if (!stamp) {
    return std::nullopt;
  }
  const UncutByFork uncut;
  static constinit std::mutex mutex;
  static constinit Lazy<Snapshot> lazy;
  const std::lock_guard lock(mutex);
  Snapshot* const snapshot = &lazy.get([] { return Snapshot(); });
  if (snapshot->stamp != stamp) {
    snapshot->stamp = stamp;
    snapshot->entries.clear();
    Result<std::vector<TunedEntry>> read = read_all(*file);
    if (!read.ok()) {
      log(LogLevel::kWarning, "nothing counts as tuned: {}", read.error().message);
      return std::nullopt;
    }
    for (TunedEntry& entry : *read) {
      if (entry.version == version()) {
        snapshot->entries[key_of(entry.device, entry.backward, entry.problem)].push_back(std::move(entry));
      }
    }
  }
  const auto found = snapshot->entries.find(key_of(device, backward, problem_class(problem)));
  if (found == snapshot->entries.end()) {
    return std::nullopt;
  }
  const auto fits = [&](const TunedEntry& entry) {
    return !lengths_known ||
           (entry.batch == problem.batch && entry.q_len == problem.q_len && entry.kv_len == problem.kv_len);
  };
  const auto entry = std::ranges::find_if(found->second, fits);
  return entry == found->second.end() ? std::nullopt : std::optional(*entry);
}

Result<std::vector<TunedEntry>> all_tuned() {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path file, tuning_file());
  FLASHLIFT_ASSIGN_OR_RETURN(const bool exists, is_there(file));
  if (!exists) {
    return std::vector<TunedEntry>();
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_file(file));
  return read_all(file);
}

Status store_tuned(const std::vector<TunedEntry>& entries) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path file, tuning_file());
  FLASHLIFT_ASSIGN_OR_RETURN([[maybe_unused]] const PrivateFolder folder, PrivateFolder::open(file.parent_path()));
  // Creates the file for this user alone, and SQLite uses the same mode for its other files. O_NONBLOCK: does not wait
  // for a pipe's other end.
  {
    const Descriptor made(open(file.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    const std::error_code failed = last_error();
    FLASHLIFT_ASSIGN_OR_RETURN(const bool exists, is_there(file));
    if (!made.is_open() && !exists) {
      return not_found("{} cannot be made: {}; set FLASHLIFT_CACHE_DIR to another folder", file.string(),
                       failed.message());
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_file(file));
  Result<Connection> connection = Connection::open(file, Connection::Access::kWrite);
  Status status = connection.ok() ? write(*connection, file, entries) : Status(connection.error());
  if (!status.ok() && connection.ok() && connection->fault() == Fault::kCorrupt) {
    log(LogLevel::kWarning, "{} is begun anew: {}", file.string(), status.error().message);
    connection = Error{};  // closes the file
    remove_file(file);
    connection = Connection::open(file, Connection::Access::kWrite);
    status = connection.ok() ? write(*connection, file, entries) : Status(connection.error());
  }
  return status;
}

Status prepare_to_store(const TunedEntry& entry) {
  constexpr size_t kLongestName = 64;
  TunedEntry trial = entry;
  trial.version = kTrialVersion;
  trial.tuning.implementation = std::string(kLongestName, ' ');
  return store_tuned({trial});
}

Result<Cleared> clear_tuned() {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path file, tuning_file());
  FLASHLIFT_RETURN_IF_ERROR(is_there(file));
  const Result<std::vector<TunedEntry>> entries = all_tuned();
  if (!entries.ok()) {
    remove_file(file);
    FLASHLIFT_ASSIGN_OR_RETURN(const bool is_left, is_there(file));
    if (is_left) {
      return not_found("cannot remove {}; remove it by hand", file.string());
    }
    return Cleared{.unreadable = entries.error().message};
  }
  if (!entries->empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(Connection connection, Connection::open(file, Connection::Access::kWrite));
    FLASHLIFT_RETURN_IF_ERROR(connection.run("DELETE FROM tuned"));
  }
  return Cleared{.entries = static_cast<int64_t>(entries->size())};
}

}  // namespace database
}  // namespace flashlift
