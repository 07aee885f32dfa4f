// An executor of plain threads, one for each body.
#pragma once

#include <thread>
#include <vector>

#include "flashlift/attention.h"

namespace flashlift::testing {

class Threads : public Executor {
 public:
  explicit Threads(int count) : count_(count) {}
  int concurrency() const override { return count_; }
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < count; ++i) {
      threads.emplace_back([&body, i] { body(i); });
    }
  }

 private:
  int count_;
};

}  // namespace flashlift::testing
