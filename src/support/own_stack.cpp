#include "support/own_stack.h"

#include <pthread.h>

#include <cstring>
#include <exception>

#include "support/error.h"
#include "support/fork_guard.h"

namespace flashlift {
namespace {

struct Call {
  const std::function<void()>& body;
  int sections;  // of the waiting thread
  std::exception_ptr thrown;
};

void* run(void* argument) {
  Call& call = *static_cast<Call*>(argument);
  count_as_within(call.sections);
  try {
    call.body();
  } catch (...) {
    call.thrown = std::current_exception();
  }
  return nullptr;
}

}  // namespace

Status run_on_own_stack(const std::function<void()>& body) {
  Call call{body, sections_of_this_thread(), nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kOwnStackBytes);
  pthread_t thread{};
  const int failed = pthread_create(&thread, &attributes, run, &call);
  pthread_attr_destroy(&attributes);
  if (failed != 0) {
    return internal_error("cannot start a thread with a stack of {} MiB: {}", kOwnStackBytes >> 20,
                          std::strerror(failed));
  }
  pthread_join(thread, nullptr);
  if (call.thrown) {
    std::rethrow_exception(call.thrown);
  }
  return {};
}

}  // namespace flashlift
