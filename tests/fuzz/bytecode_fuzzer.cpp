// Any bytes are either an error or a module that can be read back from each form in which it is written.
#include "flashlift/stablehlo.h"
#include "fuzz/fuzz.h"
#include "stablehlo/bytecode/write.h"

namespace flashlift::fuzz {
namespace {

void check(std::string_view bytes) {
  const auto module = stablehlo::read_module(bytes);
  if (!module.ok()) {
    require_callers_error(module.error());
    return;
  }
  const std::string printed = module->print();
  if (const auto again = stablehlo::Module::parse(printed); !again.ok()) {
    require(false, "the printed module is read back", again.error().message + "\n" + printed);
  }
  for (const stablehlo::Target target :
       {stablehlo::Target{{stablehlo::Encoding::kBytecode}},
        stablehlo::Target{{stablehlo::Encoding::kVhlo, stablehlo::bytecode::kOldest}, stablehlo::VersionRule::kAtLeast},
        stablehlo::Target{{stablehlo::Encoding::kVhlo, stablehlo::bytecode::kNewest}}}) {
    const auto written = stablehlo::write_module(*module, target.format, target.rule);
    if (!written.ok()) {
      require_callers_error(written.error());
      continue;
    }
    const auto again = stablehlo::read_module(*written);
    if (!again.ok()) {
      require(false, "the written module is read back", again.error().message + "\n" + printed);
    }
  }
  const auto fused = stablehlo::fuse(bytes, {.name = "fuzz", .gradients = true});
  if (fused.ok()) {
    require(stablehlo::read_module(fused->module).ok(), "a fused module is a module", printed);
  } else {
    require_callers_error(fused.error());
  }
}

}  // namespace
}  // namespace flashlift::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashlift::fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
