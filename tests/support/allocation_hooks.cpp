#include "support/allocation_hooks.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace flashlift::testing {
namespace {

std::atomic<int64_t> allocations{0};
std::atomic<int64_t> live{0};

struct Plan {
  int64_t granted = INT64_MAX;
  int64_t failures = 0;
  bool any = false;
};
thread_local Plan plan;

}  // namespace

// g++ must not see malloc's memory given to delete, or it warns: hence no inlining.
[[gnu::noinline]] static void* allocate(std::size_t size, std::size_t alignment) {
  ++allocations;
  if (plan.granted > 0) {
    --plan.granted;
  } else if (plan.failures > 0) {
    --plan.failures;
    plan.any = true;
    return nullptr;
  }
  void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  live += memory != nullptr;
  return memory;
}

[[gnu::noinline]] static void release(void* memory) {
  live -= memory != nullptr;
  std::free(memory);
}

int64_t allocation_count() { return allocations; }
int64_t live_allocations() { return live; }

FailAllocations::FailAllocations(int64_t granted, int64_t failures) { plan = {granted, failures, false}; }
FailAllocations::~FailAllocations() { plan = {}; }
bool FailAllocations::any() const { return plan.any; }

}  // namespace flashlift::testing

void* operator new(std::size_t size) {
  if (void* memory = flashlift::testing::allocate(size, alignof(std::max_align_t))) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return flashlift::testing::allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* memory = flashlift::testing::allocate(size, static_cast<std::size_t>(alignment))) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return flashlift::testing::allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { flashlift::testing::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { flashlift::testing::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { flashlift::testing::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { flashlift::testing::release(memory); }
