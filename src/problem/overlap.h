// Whether tensors share memory: what a call writes must not be what it reads, or writes elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "flashlift/program.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::problem {

// Whether any element of one shares a byte with any element of the other. Exact for strides as layouts have them, so
// that slices of one packed tensor are told apart; what would take long to decide counts as sharing. Both are verified:
// their extents fit 64 bits.
bool share_memory(const TensorView& a, const TensorView& b);

// The tensors of one call: an output shares memory with none of the others. Allocates nothing.
class CallTensors {
 public:
  // `kind` goes before the name in messages: "captured tensor".
  void add_input(std::string_view name, const TensorView& view, std::string_view kind = {}) {
    add(false, name, view, kind);
  }
  void add_output(std::string_view name, const TensorView& view, std::string_view kind = {}) {
    add(true, name, view, kind);
  }
  // Errors: two of them share memory that the call writes.
  Status verify_apart() const;

 private:
  struct Entry {
    std::string_view name;
    std::string_view kind;
    const TensorView* view;
    bool is_output;
    // Of its bytes, from the lowest to behind the highest.
    __int128 begin;
    __int128 end;
  };

  void add(bool is_output, std::string_view name, const TensorView& view, std::string_view kind);

  std::array<Entry, 16 + 2 * kMaxCaptures> entries_;
  size_t count_ = 0;
};

}  // namespace flashlift::problem
