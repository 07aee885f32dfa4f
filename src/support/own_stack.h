// Runs functions on a stack of their own.
#pragma once

#include <functional>

#include "flashlift/result.h"

namespace flashlift {

// Pages that are not used take no memory.
inline constexpr size_t kOwnStackBytes = size_t{64} << 20;

// Runs body() on a thread with a large stack, and waits for it. For recursion whose depth depends on a caller's input:
// the caller's own thread may have a small stack (512 KiB is usual in pools). Rethrows what body() throws. Errors:
// kInternal if the system cannot start a thread.
Status run_on_own_stack(const std::function<void()>& body);

}  // namespace flashlift
