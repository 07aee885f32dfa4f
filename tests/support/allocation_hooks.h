// Counts allocations by operator new in programs that link allocation_hooks.cpp, and can make it fail.
#pragma once

#include <cstdint>

namespace flashlift::testing {

// Calls of operator new so far, on all threads.
int64_t allocation_count();
// Blocks that have not been deleted yet.
int64_t live_allocations();

enum class Whose { kAll, kThisProgram };  // kThisProgram: not what shared libraries ask for, LLVM above all

// While it lives, the calling thread's allocations fail: `failures` of them after the first `granted`.
class FailAllocations {
 public:
  FailAllocations(int64_t granted, int64_t failures, Whose whose = Whose::kAll);
  ~FailAllocations();
  FailAllocations(const FailAllocations&) = delete;
  FailAllocations& operator=(const FailAllocations&) = delete;

  // Whether any allocation has failed.
  bool any() const;
};

}  // namespace flashlift::testing
