// Whether tensors share memory: a call must not write memory that it reads, or writes elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "flashlift/program.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::problem {

// Whether any element of one tensor shares a byte with any element of the other. Exact for strides of ordinary layouts,
// so that it distinguishes slices of one packed tensor; if the decision would take long, the answer is that they share.
// Both tensors are verified: their extents fit into 64 bits.
bool share_memory(const TensorView& a, const TensorView& b);

// The tensors of one call, of which no output may share memory with another tensor. Allocates nothing.
class CallTensors {
 public:
  // `kind` precedes the name in messages, for example "captured tensor".
  void add_input(std::string_view name, const TensorView& view, std::string_view kind = {}) {
    add(false, name, view, kind);
  }
  void add_output(std::string_view name, const TensorView& view, std::string_view kind = {}) {
    add(true, name, view, kind);
  }
  // Fails if a tensor that the call writes shares memory with another one.
  Status verify_apart() const;

 private:
  struct Entry {
    std::string_view name;
    std::string_view kind;
    const TensorView* view;
    bool is_output;
    // Its range of bytes: the lowest address, and the end.
    __int128 begin;
    __int128 end;
  };

  void add(bool is_output, std::string_view name, const TensorView& view, std::string_view kind);

  std::array<Entry, 16 + 2 * kMaxCaptures> entries_;
  size_t count_ = 0;
};

}  // namespace flashlift::problem
