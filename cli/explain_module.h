// flashlift explain MODULE: describes the attention that was found in a StableHLO module.
#pragma once

#include <string>

#include "cli/command.h"

namespace flashlift::cli {

Outcome explain_module(const std::string& file, bool code, bool json);

}  // namespace flashlift::cli
