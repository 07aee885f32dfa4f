// flashlift info: what this build is and what it sees of the machine.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/output.h"
#include "support/environment.h"
#include "support/version.h"

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

void print_for_people(const Json& info) {
  fmt::print("flashlift {}\n\n", info["version"].get<std::string>());
  Table variables({"environment", "value", "meaning"});
  for (const Json& variable : info["environment"]) {
    variables.add({variable["name"], variable["value"].is_null() ? "(unset)" : variable["value"], variable["meaning"]});
  }
  fmt::print("{}", variables.text());
}

Outcome run_info(bool as_json) {
  Json info;
  info["version"] = version();
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
