// flashlift info: describes this build and the machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "problem/word_texts.h"
#include "score/operation.h"
#include "support/counted.h"
#include "support/environment.h"
#include "support/processor.h"
#include "support/spelling.h"
#include "support/version.h"
#ifdef FLASHLIFT_HAS_CPU
#include "plan/cpu_list.h"
#include "runtime/tbb_executor.h"
#endif
#ifdef FLASHLIFT_HAS_CUDA
#include "cuda/compile/nvrtc.h"
#include "cuda/launch/driver.h"
#endif

namespace flashlift::cli {
namespace {

Json describe_environment() {
  Json variables = Json::array();
  for (const EnvironmentEntry& entry : environment_table()) {
    const auto value = environment_value(entry.variable);
    variables.push_back({{"name", entry.name},
                         {"value", value ? Json(std::string(*value)) : Json(nullptr)},
                         {"meaning", entry.meaning}});
  }
  return variables;
}

// Environment variables whose names start like Flashlift's, but which nothing reads.
Json unknown_variables() {
  constexpr std::string_view kPrefix = "FLASHLIFT_";
  std::vector<std::string_view> known;
  for (const EnvironmentEntry& entry : environment_table()) {
    known.emplace_back(entry.name);
  }
  Json unknown = Json::array();
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view name = std::string_view(*one).substr(0, std::string_view(*one).find('='));
    if (name.starts_with(kPrefix) && std::ranges::find(known, name) == known.end()) {
      const std::vector<std::string_view> near = similar_words(name, known);
      unknown.push_back({{"name", name}, {"hint", did_you_mean({near.begin(), near.end()})}});
    }
  }
  return unknown;
}

#ifdef FLASHLIFT_HAS_CPU
void add_cpu(Json& devices) {
  const auto best = [](const plan::CpuMachine& machine) {
    const std::optional<cpu::Isa> isa = plan::best_isa(machine);
    return isa ? Json(cpu::to_string(*isa)) : Json(nullptr);
  };
  const Result<plan::CpuMachine> machine = plan::this_cpu();
  const Status environment = check_environment();  // compiling fails with its error
  Json problem = nullptr;
  if (!machine.ok() || !environment.ok()) {
    problem = machine.ok() ? environment.error().message : machine.error().message;
  }
  devices.push_back({{"device", "cpu"},
                     {"name", processor_name()},
                     {"threads", runtime::default_executor().concurrency()},
                     {"instruction_set", best({.has = cpu::detect_capabilities(), .first = std::nullopt})},
                     {"used", machine.ok() ? best(*machine) : Json(nullptr)},
                     {"problem", problem}});
}
#endif

#ifdef FLASHLIFT_HAS_CUDA
Json describe_gpu(int ordinal, const Json& driver, const Json& nvrtc, const Json& nvrtc_path,
                  const std::string& nvrtc_problem) {
  Json gpu = {{"device", fmt::format("cuda:{}", ordinal)},
              {"name", nullptr},
              {"compute_capability", nullptr},
              {"memory_bytes", nullptr},
              {"driver", driver},
              {"nvrtc", nvrtc},
              {"nvrtc_path", nvrtc_path},
              {"problem", nullptr}};
  const Result<cuda::Device> device = cuda::get_device(ordinal);
  if (!device.ok()) {
    gpu["problem"] = device.error().message;
    return gpu;
  }
  gpu["name"] = device->name;
  gpu["compute_capability"] = fmt::format("{}.{}", device->architecture / 10, device->architecture % 10);
  gpu["memory_bytes"] = device->memory_bytes;
  constexpr int kOldest = 80;
  if (device->architecture < kOldest) {
    gpu["problem"] = "its compute capability is below 8.0";
  } else if (!nvrtc_problem.empty()) {
    gpu["problem"] = nvrtc_problem;
  }
  return gpu;
}

// Adds every GPU. If there is none, adds one entry with what is missing.
void add_gpus(Json& devices) {
  const Result<const cuda::Driver*> driver = cuda::Driver::get();
  const Result<int> count = cuda::device_count();
  const Result<const cuda::Nvrtc*> nvrtc = cuda::Nvrtc::get();
  const Json nvrtc_version = nvrtc.ok() ? Json((*nvrtc)->version()) : Json(nullptr);
  const Json nvrtc_path = nvrtc.ok() ? Json((*nvrtc)->path()) : Json(nullptr);
  const std::string nvrtc_problem = nvrtc.ok() ? "" : nvrtc.error().message;
  if (!count.ok() || *count == 0) {
    const std::string problem = count.ok() ? "the driver shows no GPU" : count.error().message;
    Json missing = Json::array({problem});
    if (!nvrtc_problem.empty()) {
      missing.push_back(nvrtc_problem);
    }
    devices.push_back({{"device", "cuda"},
                       {"name", nullptr},
                       {"compute_capability", nullptr},
                       {"memory_bytes", nullptr},
                       {"driver", nullptr},
                       {"nvrtc", nvrtc_version},
                       {"nvrtc_path", nvrtc_path},
                       {"problem", problem + (nvrtc_problem.empty() ? "" : "; " + nvrtc_problem)},
                       {"missing", missing}});
    return;
  }
  const std::string driver_version = fmt::format("{}.{}", (*driver)->version / 1000, (*driver)->version % 1000 / 10);
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    devices.push_back(describe_gpu(ordinal, driver_version, nvrtc_version, nvrtc_path, nvrtc_problem));
  }
}
#endif

Json describe_devices() {
  Json devices = Json::array();
#ifdef FLASHLIFT_HAS_CPU
  add_cpu(devices);
#endif
#ifdef FLASHLIFT_HAS_CUDA
  add_gpus(devices);
#endif
  return devices;
}

Json describe_versions() {
  Json versions = {{"flashlift", version()}, {"compiler", __VERSION__}};
#ifdef FLASHLIFT_LLVM_VERSION
  versions["llvm"] = FLASHLIFT_LLVM_VERSION;
#endif
  return versions;
}

// Aligns with the columns of the first line.
constexpr const char* kNextLine = "\n           ";

std::string describe_for_people(const Json& device) {
  std::string text = device["name"].is_null() ? "" : device["name"].get<std::string>() + ", ";
  if (device.contains("threads")) {
    const int threads = device["threads"];
    text += counted(threads, "thread") + ", ";
  } else if (!device["name"].is_null()) {
    text +=
        fmt::format("compute capability {}, {}, driver for CUDA {}, ", device["compute_capability"].get<std::string>(),
                    format_bytes(device["memory_bytes"].get<int64_t>()), device["driver"].get<std::string>());
  }
  const bool has_nvrtc = device.contains("nvrtc") && !device["nvrtc"].is_null();
  const std::string nvrtc = has_nvrtc ? fmt::format("NVRTC {} from {}", device["nvrtc"].get<std::string>(),
                                                    device["nvrtc_path"].get<std::string>())
                                      : "";
  if (device.contains("missing")) {
    text += "not usable, since something is missing:";
    for (const Json& one : device["missing"]) {
      text += kNextLine + ("- " + one.get<std::string>());
    }
    return has_nvrtc ? text + kNextLine + "found: " + nvrtc : text;
  }
  if (!device["problem"].is_null()) {
    text += "not usable: " + device["problem"].get<std::string>();
    return has_nvrtc ? text + "; " + nvrtc : text;
  }
  return text + (device.contains("used") ? device["used"].get<std::string>() : nvrtc);
}

void print_for_people(const Json& info) {
  for (const auto& [name, number] : info["versions"].items()) {
    fmt::print("{:<10} {}\n", name, number.get<std::string>());
  }
  fmt::print("\n");
  for (const Json& device : info["devices"]) {
    fmt::print("{:<10} {}\n", device["device"].get<std::string>(), describe_for_people(device));
  }
  if (info["devices"].empty()) {
    fmt::print("this build has no backend\n");
  }
  fmt::print("\n");
  Table variables({"environment", "value", "meaning"});
  for (const Json& variable : info["environment"]) {
    variables.add({variable["name"], variable["value"].is_null() ? "(unset)" : variable["value"], variable["meaning"]});
  }
  fmt::print("{}", variables.text());
  for (const Json& one : info["unknown_environment"]) {
    const std::string hint = one["hint"];
    fmt::print("{} is set, and is no variable of Flashlift's{}\n", one["name"].get<std::string>(),
               hint.empty() ? "" : "; " + hint);
  }
}

Outcome run_info(bool as_json) {
  Json info;
  info["versions"] = describe_versions();
  info["devices"] = describe_devices();
  info["environment"] = describe_environment();
  info["unknown_environment"] = unknown_variables();
  if (as_json) {
    print_json(info);
  } else {
    print_for_people(info);
  }
  return kSuccess;
}

Outcome print_operations(bool as_json) {
  if (as_json) {
    fmt::print("{}", score::operations_as_json());
    return kSuccess;
  }
  Table operations({"operation", "types", "computes"});
  for (const Json& row : Json::parse(score::operations_as_json())) {
    operations.add({row["name"], row["types"], row["computes"]});
  }
  fmt::print("{}", operations.text());
  return kSuccess;
}

// The meaning without Markdown's quotes.
std::string meaning_of(const problem::WordText& text) {
  std::string meaning = text.doc;
  if (!text.without.empty()) {
    meaning += (text.without == "required" ? "; " : "; without it: ") + text.without;
  }
  std::erase(meaning, '`');
  return meaning;
}

Outcome print_words(bool as_json) {
  if (as_json) {
    fmt::print("{}", problem::words_as_json());
    return kSuccess;
  }
  Table words({"word", "meaning"});
  for (const problem::WordText& text : problem::word_texts()) {
    words.add({fmt::format("{}", fmt::join(text.forms, " | ")), meaning_of(text)});
    for (const std::string& capture : text.captures) {
      words.add({"", "  captured " + capture});
    }
  }
  fmt::print("{}", words.text());
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("info", "Show versions, devices, instruction sets and environment variables");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  auto operations = std::make_shared<bool>(false);
  command->add_flag("--ops", *operations, "List the operations of score programs instead");
  auto words = std::make_shared<bool>(false);
  command->add_flag("--words", *words, "List the words of problems instead")->excludes("--ops");
  command->callback([=, &outcome] {
    outcome = *operations ? print_operations(*as_json) : *words ? print_words(*as_json) : run_info(*as_json);
  });
}

}  // namespace flashlift::cli
