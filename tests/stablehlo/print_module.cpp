// Reads a StableHLO module and prints it again, for the tests that compare with what JAX reads.
//   print_module FILE
#include <cstdio>

#include "stablehlo/reader/module.h"
#include "support/files.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  const auto text = flashlift::read_file(argv[1]);
  if (!text.ok()) {
    std::fprintf(stderr, "%s\n", text.error().message.c_str());
    return 2;
  }
  const auto module = flashlift::stablehlo::Module::parse(*text, argv[1]);
  if (!module.ok()) {
    std::fprintf(stderr, "%s\n", module.error().message.c_str());
    return 2;
  }
  const std::string printed = module->print();
  std::fwrite(printed.data(), 1, printed.size(), stdout);
  return 0;
}
