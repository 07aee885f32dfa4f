// Sums of the gradients of captured tensors, in an order that the problem fixes.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/partition.h"
#include "cpu/score_function.h"
#include "flashlift/backward.h"

namespace flashlift::cpu {

// Small tensors: each task adds to a buffer of its own, and the buffers are added up in the order of the tasks.
// Large ones (a full bias) are added to by all tasks, where they lie if they are dense and f32. If each element belongs
// to one key, tasks of different keys may run at the same time; otherwise all run one after the other.
class CaptureGradients {
 public:
  enum class Mode { kNone, kPrivate, kSharedByKeys, kSerial };

  CaptureGradients(const Problem& problem, const BackwardArguments& arguments, const CallSizes& sizes);

  Mode mode() const { return mode_; }
  bool is_private() const { return mode_ == Mode::kPrivate; }
  // Floats of a task's own buffer; 0 if it has none.
  int64_t task_floats() const { return is_private() ? floats_ : 0; }
  // Bytes that the sums of all tasks take, and where they are: memory that outlives the call, cleared here.
  size_t bytes() const { return static_cast<size_t>(floats_) * (is_private() ? sizeof(double) : sizeof(float)); }
  void place(std::byte* memory);

  // Where a task adds: `own` is its buffer, which is cleared here, or null. `views` has room for every capture.
  void begin_task(float* own, std::span<CaptureView> views);
  // Adds a task's own buffer to the sums.
  void commit(const float* own);
  // Writes the gradients that were asked for.
  void store() const;

 private:
  bool each_element_has_one_key(const CallSizes& sizes) const;
  // Whether a wanted gradient is summed in the caller's memory.
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
