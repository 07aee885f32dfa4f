// Counts allocations by operator new, and can make them fail, in programs that link allocation_hooks.cpp.
#pragma once

#include <cstdint>

namespace flashlift::testing {

// The number of calls of operator new so far, on all threads.
int64_t allocation_count();
// The number of blocks that have not been deleted yet.
int64_t live_allocations();

enum class Whose { kAll, kThisProgram };  // kThisProgram: without shared libraries' allocations, LLVM's above all

// As long as this object exists, allocations of the calling thread fail: `failures` of them after the first `granted`.
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
