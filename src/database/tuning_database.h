// The tuning results, in an SQLite file that processes share. For a compilation, a file that is unreadable, damaged or
// of another version counts as empty.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tuning.h"

namespace flashlift::database {

struct TunedEntry {
  std::string version;  // of Flashlift: results of another version do not apply to this one's kernels
  std::string device;
  bool backward = false;
  std::string problem;  // its text without batch and lengths; see problem_class()
  int64_t batch = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  Tuning tuning;
  double ms = 0;
  double heuristics_ms = 0;
  int64_t tuned_at = 0;  // seconds since 1970
};

// Returns kOff, kRead or kWrite. The environment was checked before.
TuningPolicy effective(TuningPolicy policy);

// The text of a problem with placeholders for its batch and lengths.
std::string problem_class(const Problem& problem);
// An entry of this version of Flashlift with the current time.
TunedEntry make_entry(const std::string& device, bool backward, const Problem& problem);

// FLASHLIFT_CACHE_DIR/tuning.sqlite3. Errors: no such folder can be named.
Result<std::filesystem::path> tuning_file();

// Whether there is a file to read: most machines have none, and only pay for this check.
bool anything_tuned();

// The entry that a compilation uses: that of the problem's own lengths, or, if these are unknown, the latest one. The
// file is only opened if it has changed since the last call.
std::optional<TunedEntry> find_tuned(const std::string& device, bool backward, const Problem& problem,
                                     bool lengths_known);

// All entries, the latest first; none without a file. Errors: a file that cannot be used.
Result<std::vector<TunedEntry>> all_tuned();
// Replaces entries for the same problem and device. A damaged file is replaced. Errors: no SQLite, a folder that cannot
// be used, a file of a later version.
Status store_tuned(const std::vector<TunedEntry>& entries);
// The errors that store_tuned() has for an entry, before what it holds is measured: stores nothing, but makes the file
// as large as it has to be.
Status prepare_to_store(const TunedEntry& entry);
struct Cleared {
  int64_t entries = 0;
  std::string unreadable;  // why a file that cannot be read, with whatever it had, was removed; empty: it was read
};
// Removes all entries, or a file that cannot be read.
Result<Cleared> clear_tuned();

// As text for other machines of the same kind.
std::string to_json(const std::vector<TunedEntry>& entries);
// Errors: an invalid text, with the entry and the reason.
Result<std::vector<TunedEntry>> from_json(const std::string& text);

}  // namespace flashlift::database
