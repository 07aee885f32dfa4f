// flashlift info: what this build is and what it sees of the machine.
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/output.h"
#include "support/environment.h"
#include "support/version.h"
#ifdef FLASHLIFT_HAS_CPU
#include "cpu/tile/isa.h"
#include "runtime/tbb_executor.h"
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

// What the processor calls itself, where Linux tells.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

Json describe_devices() {
  Json devices = Json::array();
#ifdef FLASHLIFT_HAS_CPU
  const auto detected = cpu::detect_isa();
  const auto used = cpu::choose_isa();
  devices.push_back({{"device", "cpu"},
                     {"name", processor_name()},
                     {"threads", runtime::default_executor().concurrency()},
                     {"instruction_set", detected ? Json(cpu::to_string(*detected)) : Json(nullptr)},
                     {"used", used ? Json(cpu::to_string(*used)) : Json(nullptr)},
                     {"problem", used ? Json(nullptr) : Json(used.error().message)}});
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

void print_for_people(const Json& info) {
  for (const auto& [name, number] : info["versions"].items()) {
    fmt::print("{:<10} {}\n", name, number.get<std::string>());
  }
  fmt::print("\n");
  for (const Json& device : info["devices"]) {
    fmt::print("{:<10} {}, {} threads, ", device["device"].get<std::string>(), device["name"].get<std::string>(),
               device["threads"].get<int>());
    if (device["used"].is_null()) {
      fmt::print("not usable: {}\n", device["problem"].get<std::string>());
    } else {
      fmt::print("{}\n", device["used"].get<std::string>());
    }
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
}

Outcome run_info(bool as_json) {
  Json info;
  info["versions"] = describe_versions();
  info["devices"] = describe_devices();
  info["environment"] = describe_environment();
  if (as_json) {
    print_json(info);
  } else {
    print_for_people(info);
  }
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("info", "Show versions, devices, instruction sets and environment variables");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([as_json, &outcome] { outcome = run_info(*as_json); });
}

}  // namespace flashlift::cli
