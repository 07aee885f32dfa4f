// Reading modules in tests.
#pragma once

#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

inline Module read(std::string_view text) {
  Result<Module> module = Module::parse(text, "test.mlir");
  if (!module.ok()) {
    ADD_FAILURE() << module.error().message << "\nin:\n" << text;
    return *Module::parse("module {}");
  }
  return *std::move(module);
}

// A function @main around `body`, which ends in a return.
inline std::string in_main(std::string_view arguments, std::string_view results, std::string_view body) {
  return "func.func @main(" + std::string(arguments) + ") -> (" + std::string(results) + ") {\n" + std::string(body) +
         "\n}\n";
}

// The first operation of a name, also in regions.
inline mlir::Operation* find(const Module& module, std::string_view name) {
  mlir::Operation* found = nullptr;
  module.op().walk([&](mlir::Operation* op) {
    if (found == nullptr && op->getName().getStringRef() == llvm::StringRef(name.data(), name.size())) {
      found = op;
    }
  });
  if (found == nullptr) {
    ADD_FAILURE() << "no operation " << name;
  }
  return found;
}

inline int count(const Module& module, std::string_view name) {
  int found = 0;
  module.op().walk(
      [&](mlir::Operation* op) { found += op->getName().getStringRef() == llvm::StringRef(name.data(), name.size()); });
  return found;
}

}  // namespace flashlift::stablehlo
