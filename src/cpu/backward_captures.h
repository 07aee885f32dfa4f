// Sums of the gradients of captured tensors, in an order that the problem fixes.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/partition.h"
#include "cpu/score_function.h"
#include "flashlift/backward.h"

namespace flashlift::cpu {

// Small tensors: each task adds to its own buffer, and the buffers are added in the order of the tasks. Large tensors
// (a full bias): all tasks add to the same sums, directly in the gradient's memory if it is dense and f32. If each
// element belongs to one key, tasks of different keys may run at the same time; otherwise they run one after the other.
class CaptureGradients {
 public:
  enum class Mode { kNone, kPrivate, kSharedByKeys, kSerial };

  CaptureGradients(const Problem& problem, const BackwardArguments& arguments, const CallSizes& sizes);

  Mode mode() const { return mode_; }
  bool is_private() const { return mode_ == Mode::kPrivate; }
  // The size of a task's own buffer in floats; 0 if it has none.
  int64_t task_floats() const { return is_private() ? floats_ : 0; }
  // The size in bytes of the sums of all tasks, and their memory, which must outlive the call and is cleared here.
  size_t bytes() const { return static_cast<size_t>(floats_) * (is_private() ? sizeof(double) : sizeof(float)); }
  void place(std::byte* memory);

  // The destinations of a task's additions: `own` is its buffer, which is cleared here, or null. `views` has room for
  // every capture.
  void begin_task(float* own, std::span<CaptureView> views);
  // Adds a task's own buffer to the sums.
  void commit(const float* own);
  // Writes the requested gradients.
  void store() const;

 private:
  bool each_element_has_one_key(const CallSizes& sizes) const;
  // Whether a requested gradient is summed in the caller's memory.
  bool is_in_place(size_t capture) const;
  void store(size_t capture) const;

  const Problem& problem_;
  const BackwardArguments& arguments_;
  Mode mode_ = Mode::kNone;
  int64_t floats_ = 0;
  int64_t offsets_[2 * kMaxCaptures] = {};
  double* sums_ = nullptr;  // kPrivate
  float* shared_ = nullptr;
};

}  // namespace flashlift::cpu
