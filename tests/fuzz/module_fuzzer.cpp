// Any text is either an error or a module that can be read back from its printed form, and whose fused forms are valid.
#include "flashlift/stablehlo.h"
#include "fuzz/fuzz.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/normalize.h"

namespace flashlift::fuzz {
namespace {

void check_normalization(const stablehlo::Module& module) {
  stablehlo::Module copy = module.clone();
  if (!stablehlo::inline_calls(copy).ok() || !stablehlo::inline_composites(copy).ok()) {
    return;
  }
  stablehlo::remove_dead_code(copy);
  const std::string printed = copy.print();
  require(stablehlo::Module::parse(printed).ok(), "the normalised module is read back", printed);
}

void check(std::string_view text) {
  const auto module = stablehlo::Module::parse(text);
  if (!module.ok()) {
    require_callers_error(module.error());
    return;
  }
  const std::string printed = module->print();
  const auto again = stablehlo::Module::parse(printed);
  require(again.ok(), "the printed module is read back", printed);
  check_normalization(*module);

  for (const auto as : {stablehlo::FuseAs::kCustomCall, stablehlo::FuseAs::kComposite}) {
    const auto fused = stablehlo::fuse(text, {.as = as, .name = "fuzz", .gradients = true});
    if (!fused.ok()) {
      require_callers_error(fused.error());
      continue;
    }
    require(fused->changed == (fused->fused_count() > 0), "a module changes if something in it is fused");
    require(fused->changed || fused->module == text, "a module that nothing is fused in stays byte for byte");
    require(stablehlo::Module::parse(fused->module).ok(), "a fused module is a module", fused->module);
  }
}

}  // namespace
}  // namespace flashlift::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashlift::fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
