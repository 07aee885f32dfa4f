// The errors of module commands in a build without MLIR.
#include "cli/command.h"
#include "cli/explain_module.h"
#include "support/error.h"

namespace flashlift::cli {
namespace {

Error no_stablehlo() {
  return unsupported("this build reads no StableHLO modules; build it with -DFLASHLIFT_STABLEHLO=ON (needs MLIR 22)");
}

}  // namespace

Outcome explain_module(const std::string&, bool, bool) { return no_stablehlo(); }

void add_fuse(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("fuse", "(not in this build, which is without StableHLO)");
  command->allow_extras();
  command->callback([&outcome] { outcome = no_stablehlo(); });
}

}  // namespace flashlift::cli
