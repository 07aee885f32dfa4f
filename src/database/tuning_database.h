// What was tuned, in an SQLite file that processes share. A file that cannot be read, that is torn or of another
// version holds nothing for a compile.
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
  std::string version;  // of Flashlift: what another one measured says nothing of this one's kernels
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

// kOff, kRead or kWrite; the environment has been checked.
TuningPolicy effective(TuningPolicy policy);

// The text of a problem in which its batch and lengths only fill their places.
std::string problem_class(const Problem& problem);
// Of this version of Flashlift, now.
TunedEntry make_entry(const std::string& device, bool backward, const Problem& problem);

// FLASHLIFT_CACHE_DIR/tuning.sqlite3. Errors: no such folder can be named.
Result<std::filesystem::path> tuning_file();

// Whether there is a file that may be looked into: most machines have none, and pay for nothing else.
bool anything_tuned();

// What a compile is to use: the entry of the problem's own lengths, or, where they are unknown, the one that was tuned
// last. Nothing is opened unless the file has changed since the last look.
std::optional<TunedEntry> find_tuned(const std::string& device, bool backward, const Problem& problem,
                                     bool lengths_known);

// All entries, the latest first. No file is no entry. Errors: what is wrong with the file.
Result<std::vector<TunedEntry>> all_tuned();
// Takes the place of entries for the same. A torn file is begun anew. Errors: no SQLite, a folder that cannot be used,
// a file of a later version.
Status store_tuned(const std::vector<TunedEntry>& entries);
// Removes all entries; also a file that cannot be read. Gives how many there were.
Result<int64_t> clear_tuned();

// For other machines of the same kind.
std::string to_json(const std::vector<TunedEntry>& entries);
// Errors: no such text, naming the entry and what is wrong with it.
Result<std::vector<TunedEntry>> from_json(const std::string& text);

}  // namespace flashlift::database
