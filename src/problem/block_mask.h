// Checks that all functions for block masks share.
#pragma once

#include <cstdint>

#include "flashlift/result.h"

namespace flashlift::problem {

// Refuses blocks without queries or keys.
Status verify_blocks(int64_t q_block, int64_t kv_block);

}  // namespace flashlift::problem
