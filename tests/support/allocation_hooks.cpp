#include "support/allocation_hooks.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

extern "C" const char __executable_start;  // defined by the linker
extern "C" const char etext;

namespace flashlift::testing {
namespace {

std::atomic<int64_t> allocations{0};
std::atomic<int64_t> live{0};

struct Plan {
  int64_t granted = INT64_MAX;
  int64_t failures = 0;
  bool any = false;
  Whose whose = Whose::kAll;
};
thread_local Plan plan;

bool is_of_this_program(const void* caller) { return caller >= &__executable_start && caller < &etext; }

}  // namespace

// Not inlined: otherwise g++ sees that memory of malloc is passed to delete, and warns.
[[gnu::noinline]] static void* allocate(std::size_t size, std::size_t alignment, const void* caller) {
  ++allocations;
  const bool counts = plan.whose == Whose::kAll || is_of_this_program(caller);
  if (counts && plan.granted > 0) {
    --plan.granted;
  } else if (counts && plan.failures > 0) {
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

FailAllocations::FailAllocations(int64_t granted, int64_t failures, Whose whose) {
  plan = {granted, failures, false, whose};
}
FailAllocations::~FailAllocations() { plan = {}; }
bool FailAllocations::any() const { return plan.any; }

}  // namespace flashlift::testing

void* operator new(std::size_t size) {
  if (void* memory = flashlift::testing::allocate(size, alignof(std::max_align_t), __builtin_return_address(0))) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return flashlift::testing::allocate(size, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* memory =
          flashlift::testing::allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0))) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return flashlift::testing::allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { flashlift::testing::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { flashlift::testing::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { flashlift::testing::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { flashlift::testing::release(memory); }
