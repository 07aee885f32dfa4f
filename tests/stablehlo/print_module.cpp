// Reads a StableHLO module, applies passes in the order in which they are named, and prints the module: for tests that
// compare with what JAX and XLA make of it.
//
//     print_module FILE [inline | inline_composites | remove_dead_code]... [emit=FORM]
//
// FORM as for `flashlift fuse --emit`; text without it.
#include <cstdio>
#include <string_view>

#include "stablehlo/bytecode/read.h"
#include "stablehlo/bytecode/write.h"
#include "stablehlo/reader/normalize.h"
#include "support/error.h"
#include "support/files.h"

namespace flashlift::stablehlo {
namespace {

Status apply(Module& module, std::string_view pass) {
  if (pass == "inline") {
    return inline_calls(module);
  }
  if (pass == "inline_composites") {
    return inline_composites(module);
  }
  if (pass == "remove_dead_code") {
    return remove_dead_code(module), Status();
  }
  return invalid_argument("there is no pass '{}'", pass);
}

Result<std::string> run(int argc, char** argv) {
  if (argc < 2) {
    return invalid_argument("usage: print_module FILE [PASS]...");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string text, read_file(argv[1]));
  FLASHLIFT_ASSIGN_OR_RETURN(Module module, read_module(text, argv[1]));
  constexpr std::string_view kEmit = "emit=";
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with(kEmit)) {
      FLASHLIFT_ASSIGN_OR_RETURN(const Target target, parse_target(word.substr(kEmit.size()), format_of(text)));
      return write_module(module, target.format, target.rule);
    }
    FLASHLIFT_RETURN_IF_ERROR(apply(module, word));
  }
  return module.print();
}

}  // namespace
}  // namespace flashlift::stablehlo

int main(int argc, char** argv) {
  const auto printed = flashlift::stablehlo::run(argc, argv);
  if (!printed.ok()) {
    std::fprintf(stderr, "%s\n", printed.error().message.c_str());
    return 2;
  }
  std::fwrite(printed->data(), 1, printed->size(), stdout);
  return 0;
}
