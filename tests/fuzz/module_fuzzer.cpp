// Any text either is an error or a module that is read back from what it prints.
#include "fuzz/fuzz.h"
#include "stablehlo/reader/module.h"

namespace flashlift::fuzz {
namespace {

void check(std::string_view text) {
  const auto module = stablehlo::Module::parse(text);
  if (!module.ok()) {
    require_callers_error(module.error());
    return;
  }
  const std::string printed = module->print();
  const auto again = stablehlo::Module::parse(printed);
  require(again.ok(), "the printed module is read back", printed);
}

}  // namespace
}  // namespace flashlift::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashlift::fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
