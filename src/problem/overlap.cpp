#include "problem/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "support/error.h"

namespace flashlift::problem {
namespace {

using int128 = __int128;  // callers may set strides and sizes to any number

// step * x for an integer x from 0 to most. Steps are positive numbers of bytes.
struct Term {
  int128 step;
  int128 most;
};

// Whether a sum of terms can be between `low` and `high`. The search tries the largest steps first, and leaves a branch
// as soon as the remaining terms cannot reach the range. With strides of ordinary layouts, in which each dimension
// steps over the ones inside it, it tries only one or two values of each term.
class Sum {
 public:
  // Keeps the terms sorted by step, largest first.
  void add(int128 step, int128 most) {
    if (step < 0) {  // the same numbers, counted from the other end
      offset_ += step * most;
      step = -step;
    }
    if (step == 0 || most == 0) {
      return;
    }
    int at = count_;
    while (at > 0 && terms_[at - 1].step < step) {
      --at;
    }
    if (at > 0 && terms_[at - 1].step == step) {
      terms_[at - 1].most += most;
      return;
    }
    for (int i = count_++; i > at; --i) {
      terms_[i] = terms_[i - 1];
    }
    terms_[at] = {step, most};
  }

  bool reaches(int128 low, int128 high) {
    rest_[count_] = 0;
    for (int i = count_; i-- > 0;) {
      rest_[i] = rest_[i + 1] + terms_[i].step * terms_[i].most;
    }
    return reaches(0, low - offset_, high - offset_);
  }

 private:
  bool reaches(int i, int128 low, int128 high) {
    if (high < 0 || low > rest_[i]) {
      return false;
    }
    if (low <= 0 || i == count_) {  // all remaining terms are 0
      return true;
    }
    if (--patience_ < 0) {
      return true;
    }
    const auto [step, most] = terms_[i];
    const int128 first = std::max<int128>(0, (low - rest_[i + 1] + step - 1) / step);
    const int128 last = std::min(most, high / step);
    for (int128 x = last; x >= first; --x) {
      if (reaches(i + 1, low - x * step, high - x * step)) {
        return true;
      }
    }
    return false;
  }

  std::array<Term, 2 * kMaxRank> terms_{};
  std::array<int128, 2 * kMaxRank + 1> rest_{};  // the maximum of the sum of the terms from i on
  int count_ = 0;
  int128 offset_ = 0;
  int patience_ = 10000;
};

int128 bytes_of(const TensorView& view) { return static_cast<int128>(size_in_bytes(view.dtype)); }

bool is_empty(const TensorView& view) {
  return std::ranges::any_of(view.shape(), [](int64_t size) { return size <= 0; });
}

}  // namespace

bool share_memory(const TensorView& a, const TensorView& b) {
  if (is_empty(a) || is_empty(b)) {
    return false;
  }
  // The distance between an element of `a` and one of `b`, minus that of their first elements.
  Sum distance;
  for (int i = 0; i < a.rank; ++i) {
    distance.add(bytes_of(a) * a.strides[i], a.sizes[i] - 1);
  }
  for (int i = 0; i < b.rank; ++i) {
    distance.add(-bytes_of(b) * b.strides[i], b.sizes[i] - 1);
  }
  const int128 first = static_cast<int128>(reinterpret_cast<uintptr_t>(a.data)) -
                       static_cast<int128>(reinterpret_cast<uintptr_t>(b.data));
  return distance.reaches(1 - bytes_of(a) - first, bytes_of(b) - 1 - first);
}

void CallTensors::add(bool is_output, std::string_view name, const TensorView& view, std::string_view kind) {
  if (is_empty(view) || count_ == entries_.size()) {
    return;
  }
  int128 begin = reinterpret_cast<uintptr_t>(view.data);
  int128 end = begin + bytes_of(view);
  for (int i = 0; i < view.rank; ++i) {
    const int128 reach = bytes_of(view) * view.strides[i] * (view.sizes[i] - 1);
    (reach < 0 ? begin : end) += reach;
  }
  entries_[count_++] = {name, kind, &view, is_output, begin, end};
}

Status CallTensors::verify_apart() const {
  const auto title = [](const Entry& entry) {
    return entry.kind.empty() ? std::string(entry.name) : fmt::format("{} `{}`", entry.kind, entry.name);
  };
  for (size_t i = 0; i < count_; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Entry& a = entries_[i];
      const Entry& b = entries_[j];
      if ((a.is_output || b.is_output) && a.begin < b.end && b.begin < a.end && share_memory(*a.view, *b.view)) {
        const Entry& output = a.is_output ? a : b;
        return invalid_argument("{} shares memory with {}: give an output memory of its own", title(output),
                                title(a.is_output ? b : a));
      }
    }
  }
  return {};
}

}  // namespace flashlift::problem
