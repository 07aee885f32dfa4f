// flashlift cache: manages tuning results and GPU kernels on disk.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "database/tuning_database.h"
#include "support/counted.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/private_folder.h"
#include "support/tuning_policies.h"
#include "support/version.h"

namespace flashlift::cli {
namespace {

using database::TunedEntry;

std::string time_text(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  return gmtime_r(&time, &parts) == nullptr ? "?" : fmt::format("{:%Y-%m-%d %H:%M}", parts);
}

std::string lengths_of(const TunedEntry& entry) {
  return fmt::format("b{} sq{} skv{}", entry.batch, entry.q_len, entry.kv_len);
}

// Shortens a program's text, of which a table needs only the beginning.
std::string shortened(std::string text) {
  constexpr size_t kMost = 60;
  if (text.size() > kMost) {
    text.resize(kMost - 3);
    text += "...";
  }
  return text;
}

Outcome run_list(bool json) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<TunedEntry> entries, database::all_tuned());
  if (json) {
    fmt::print("{}\n", database::to_json(entries));
    return kSuccess;
  }
  Table table({"tuned", "direction", "lengths", "problem", "best", "ms", "speed"});
  size_t others = 0;
  for (const TunedEntry& entry : entries) {
    if (entry.version != version()) {
      ++others;
      continue;
    }
    table.add({time_text(entry.tuned_at), entry.backward ? "backward" : "forward", lengths_of(entry),
               shortened(entry.problem), to_string(entry.tuning), fmt::format("{:.4g}", entry.ms),
               fmt::format("{:.2f}", entry.ms > 0 ? entry.heuristics_ms / entry.ms : 1.0)});
  }
  fmt::print("{}", table.text());
  if (others > 0) {
    fmt::print("and {} of other versions of Flashlift, which this one does not use\n", others);
  }
  return kSuccess;
}

struct Kernels {
  int64_t count = 0;
  int64_t bytes = 0;
};

Kernels count_kernels(const std::filesystem::path& folder) {
  Kernels kernels;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".cubin") {
      ++kernels.count;
      kernels.bytes += static_cast<int64_t>(entry.file_size(ignored));
    }
  }
  return kernels;
}

Outcome run_show(bool json) {
  FLASHLIFT_RETURN_IF_ERROR(check_environment());
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path folder, cache_folder());
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path file, database::tuning_file());
  const Kernels kernels = count_kernels(folder);
  const Result<std::vector<TunedEntry>> entries = database::all_tuned();
  const auto policy = database::effective(TuningPolicy::kFromEnvironment);
  if (json) {
    print_json({{"folder", folder.string()},
                {"tuning_file", file.string()},
                {"tuned", entries.ok() ? Json(entries->size()) : Json(nullptr)},
                {"problem", entries.ok() ? Json(nullptr) : Json(entries.error().message)},
                {"policy", word_of(policy)},
                {"kernels", kernels.count},
                {"kernel_bytes", kernels.bytes}});
    return kSuccess;
  }
  fmt::print("folder   {}\n", folder.string());
  fmt::print("tuned    {}\n",
             entries.ok() ? fmt::format("{}, in {}", counted(entries->size(), "problem"), file.filename().string())
                          : "none: " + entries.error().message);
  fmt::print("policy   {}\n", word_of(policy));
  fmt::print("kernels  {} for GPUs, {}\n", kernels.count, format_bytes(kernels.bytes));
  return kSuccess;
}

Outcome run_export(const std::string& path) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<TunedEntry> entries, database::all_tuned());
  const std::string text = database::to_json(entries) + "\n";
  FLASHLIFT_ASSIGN_OR_RETURN(const OutputFile file, OutputFile::find("FILE", path));
  const Output output{file, text};
  FLASHLIFT_RETURN_IF_ERROR(write_outputs({&output, 1}));
  return kSuccess;
}

Outcome run_import(const std::string& path, bool json) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string text, read_input(path));
  Result<std::vector<TunedEntry>> entries = database::from_json(text);
  if (!entries.ok()) {
    return invalid_argument("{}: {}", input_name(path), entries.error().message);
  }
  FLASHLIFT_RETURN_IF_ERROR(database::store_tuned(*entries));
  if (json) {
    print_json({{"imported", entries->size()}});
  } else {
    fmt::print("{}\n", counted(entries->size(), "entry", "entries"));
  }
  return kSuccess;
}

Outcome run_clear(bool with_kernels, bool json) {
  FLASHLIFT_ASSIGN_OR_RETURN(const database::Cleared cleared, database::clear_tuned());
  int64_t removed = 0;
  if (with_kernels) {
    FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path path, cache_folder());
    FLASHLIFT_ASSIGN_OR_RETURN(const PrivateFolder folder, PrivateFolder::open(path));
    for (const PrivateFolder::Entry& entry : folder.entries()) {
      if (entry.name.ends_with(".cubin")) {
        folder.remove(entry.name);
        ++removed;
      }
    }
  }
  if (json) {
    Json printed{{"tuned", cleared.entries}, {"kernels", removed}};
    if (!cleared.unreadable.empty()) {
      printed["tuned"] = nullptr;
      printed["problem"] = cleared.unreadable;
    }
    print_json(printed);
    return kSuccess;
  }
  if (cleared.unreadable.empty()) {
    fmt::print("{} removed\n", counted(cleared.entries, "tuned problem"));
  } else {
    fmt::print("a file of tuned problems that cannot be read was removed: {}\n", cleared.unreadable);
  }
  if (with_kernels) {
    fmt::print("{} removed\n", counted(removed, "kernel"));
  }
  return kSuccess;
}

}  // namespace

void add_cache(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("cache", "What `flashlift tune` remembers, and a GPU's kernels on disk");
  command->require_subcommand(1);
  struct Options {
    std::string path = "-";
    bool json = false;
    bool kernels = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* list = command->add_subcommand("list", "What was tuned, the latest first");
  list->add_flag("--json", options->json, "Print one JSON object");
  list->callback([options, &outcome] { outcome = run_list(options->json); });
  CLI::App* show = command->add_subcommand("show", "Where it lies and how much it is");
  show->add_flag("--json", options->json, "Print one JSON object");
  show->callback([options, &outcome] { outcome = run_show(options->json); });
  CLI::App* export_command =
      command->add_subcommand("export", "Write what was tuned as JSON, for machines of the same kind");
  export_command->add_option("FILE", options->path, "Where to; - is standard output")->option_text("FILE [-]");
  export_command->callback([options, &outcome] { outcome = run_export(options->path); });
  CLI::App* import_command =
      command->add_subcommand("import", "Take what `export` wrote; entries for the same are replaced");
  import_command->add_option("FILE", options->path, "Where from; - is standard input")->required();
  import_command->add_flag("--json", options->json, "Print one JSON object");
  import_command->callback([options, &outcome] { outcome = run_import(options->path, options->json); });
  CLI::App* clear = command->add_subcommand("clear", "Forget what was tuned");
  clear->add_flag("--kernels", options->kernels, "And remove the kernels");
  clear->add_flag("--json", options->json, "Print one JSON object");
  clear->callback([options, &outcome] { outcome = run_clear(options->kernels, options->json); });
}

}  // namespace flashlift::cli
