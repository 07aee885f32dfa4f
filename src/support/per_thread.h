// Objects that each thread makes at their first use and keeps until it ends.
#pragma once

#include <cxxabi.h>

#include <utility>

// Of the library that registers, which stays loaded until its objects are destroyed. The C++ ABI gives it this name.
extern "C" void* __dso_handle __attribute__((visibility("hidden")));  // NOLINT

namespace flashlift {

// For thread-local objects of functions: `static constinit thread_local PerThread<Table> table; return table.get();`.
// A plain thread_local object is used after its destruction by calls that other destructors make: those of the caller's
// thread-local objects that are older, and, in the thread that calls exit(), those of static objects and the functions
// of atexit(). This one is made anew then. (What the process's end makes anew is not destroyed.)
template <typename T>
class PerThread {
 public:
  T& get() {
    if (object_ == nullptr) {
      object_ = new T();
      abi::__cxa_thread_atexit(destroy, this, static_cast<void*>(&__dso_handle));
    }
    return *object_;
  }

 private:
  static void destroy(void* self) { delete std::exchange(static_cast<PerThread*>(self)->object_, nullptr); }

  T* object_ = nullptr;
};

}  // namespace flashlift
