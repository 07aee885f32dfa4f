// Calls on a stack of their own.
#pragma once

#include <functional>

#include "flashlift/result.h"

namespace flashlift {

// Memory that is not touched is not taken.
inline constexpr size_t kOwnStackBytes = size_t{64} << 20;

// Runs body() on a thread whose stack is large, and waits for it. For what recurses as deep as a caller's input is: the
// caller's own thread may have a small stack (512 KiB are usual in pools). What body() throws is thrown here.
// Errors: kInternal where the system gives no thread.
Status run_on_own_stack(const std::function<void()>& body);

}  // namespace flashlift
