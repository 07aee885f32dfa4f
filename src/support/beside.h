// Work in another thread, for which this thread waits later.
#pragma once

#include <future>
#include <utility>

#include "support/fork_guard.h"

namespace flashlift {

// Begins function() in another thread, which counts as inside this thread's sections (fork_guard.h): they must not end
// before the result is there. The result's destructor waits for it, too. If no thread can be started, the result's
// get() calls function().
template <typename Function>
auto begin_beside(Function function) {
  struct WithinSections {
    int sections;
    explicit WithinSections(int of_caller) : sections(of_caller) { count_as_within(sections); }
    ~WithinSections() { count_as_within(-sections); }
    WithinSections(const WithinSections&) = delete;
    WithinSections& operator=(const WithinSections&) = delete;
  };
  return std::async([function = std::move(function), sections = sections_of_this_thread()]() mutable {
    const WithinSections within(sections);
    return function();
  });
}

}  // namespace flashlift
