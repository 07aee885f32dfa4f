#include "runtime/verify_values.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "problem/bound_problem.h"
#include "support/error.h"
#include "visits/visits.h"

namespace flashlift::runtime {
namespace {

int32_t element(const TensorView& view, int64_t index) {
  return static_cast<const int32_t*>(view.data)[index * view.strides[0]];
}

Status verify_starts(const Capture& capture, const TensorView& starts, const char* what, int64_t length) {
  if (starts.sizes[0] == 0) {
    return invalid_argument(
        "captured tensor `{}` is empty; expected the starts of sequences, beginning with 0, and "
        "the end of the last one",
        capture.name);
  }
  int32_t before = 0;
  for (int64_t i = 0; i < starts.sizes[0]; ++i) {
    const int32_t start = element(starts, i);
    if (start < before || start > length || (i == 0 && start != 0)) {
      return invalid_argument(
          "captured tensor `{}`: element {} is {}{}; expected numbers that begin with 0, never decrease and are at "
          "most {}, the number of {}",
          capture.name, i, start, start < before && i > 0 ? fmt::format(", after {}", before) : "", length, what);
    }
    before = start;
  }
  return {};
}

Status verify_counts(const Capture& capture, const TensorView& counts, int64_t kv_len) {
  for (int64_t i = 0; i < counts.sizes[0]; ++i) {
    if (const int32_t count = element(counts, i); count < 0 || count > kv_len) {
      return invalid_argument("captured tensor `{}`: element {} is {}; expected 0 to {}, the number of keys",
                              capture.name, i, count, kv_len);
    }
  }
  return {};
}

// Whether a page without a place in memory is read: only pages whose keys are all masked may lack one.
class MissingPages : problem::BoundProblem<float> {
 public:
  MissingPages(const Problem& problem, const AttentionArguments& arguments)
      : BoundProblem(problem, arguments),
        q_len_(arguments.q.sizes[2]),
        visits_(problem, arguments.q.sizes[0], q_len_, kv_len(), arguments.captures) {}

  // The first page in [begin, end) of batch b that has an unmasked key; `end` if there is none.
  int64_t first_read(int64_t b, int64_t begin, int64_t end) {
    const visits::TileBox box{.b = b,
                              .h_begin = 0,
                              .h_end = problem_.q_heads,
                              .q_begin = 0,
                              .q_end = q_len_,
                              .kv_begin = begin * problem_.page_size,
                              .kv_end = end * problem_.page_size};
    if (visits_.classify(box, scratch_) == visits::TileKind::kSkipped) {
      return end;
    }
    if (end - begin == 1) {
      return reads_a_key(box) ? begin : end;
    }
    const int64_t middle = begin + (end - begin) / 2;
    const int64_t found = first_read(b, begin, middle);
    return found < middle ? found : first_read(b, middle, end);
  }

 private:
  bool reads_a_key(const visits::TileBox& box) {
    const int64_t heads = visits_.depends_on_h() ? box.h_end : 1;
    for (int64_t kv = box.kv_begin; kv < box.kv_end; ++kv) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t q = 0; q < box.q_end; ++q) {
          const score::Coordinates at = coordinates(box.b, h, q, kv);
          if (mask_mod(at) && score_mod(0.0f, at) != -std::numeric_limits<float>::infinity()) {
            return true;
          }
        }
      }
    }
    return false;
  }

  int64_t q_len_;
  visits::Visits visits_;
  std::vector<score::Interval> scratch_;
};

// One row of a page table.
struct PageRow {
  const int32_t* pages;
  int64_t stride;
  int64_t width;
  int64_t count;  // of pages in memory

  int32_t operator[](int64_t i) const { return pages[i * stride]; }
  bool is_missing(int64_t i) const { return (*this)[i] < 0 || (*this)[i] >= count; }
  // A loop without branches, since this is all that most calls need.
  bool has_missing() const {
    uint32_t largest = 0;  // negative numbers are large ones here
    for (int64_t i = 0; i < width; ++i) {
      largest = std::max(largest, static_cast<uint32_t>((*this)[i]));
    }
    return width > 0 && largest >= static_cast<uint64_t>(count);
  }
  // The end of the run of entries, all missing or all present, that begins at `begin`.
  int64_t run_end(int64_t begin) const {
    int64_t end = begin + 1;
    while (end < width && is_missing(end) == is_missing(begin)) {
      ++end;
    }
    return end;
  }
};

Status verify_pages(const Problem& problem, const AttentionArguments& arguments) {
  const TensorView& table = *arguments.page_table;
  if (arguments.q.sizes[2] == 0) {
    return {};
  }
  std::optional<MissingPages> missing;  // few tables need it
  for (int64_t b = 0; b < table.sizes[0]; ++b) {
    const PageRow row{static_cast<const int32_t*>(table.data) + b * table.strides[0], table.strides[1], table.sizes[1],
                      arguments.k.sizes[0]};
    if (!row.has_missing()) {
      continue;
    }
    if (!missing) {
      missing.emplace(problem, arguments);
    }
    for (int64_t begin = 0, end = 0; begin < row.width; begin = end) {
      end = row.run_end(begin);
      if (!row.is_missing(begin)) {
        continue;
      }
      if (const int64_t i = missing->first_read(b, begin, end); i < end) {
        return invalid_argument(
            "page_table: entry [{}, {}] is {}; expected 0 to {}, since its keys are not masked; key_lengths in the "
            "problem masks the keys behind a sequence's end",
            b, i, row[i], row.count - 1);
      }
    }
  }
  return {};
}

}  // namespace

std::vector<problem::Holds> contents_of(const Problem& problem) {
  std::vector<problem::Holds> contents;
  for (const Capture& capture : problem.captures) {
    const problem::FeatureTensor* const tensor = problem::feature_tensor(capture);
    contents.push_back(tensor == nullptr ? problem::Holds::kAnything : tensor->holds);
  }
  return contents;
}

Status verify_values(const Problem& problem, std::span<const problem::Holds> contents,
                     const AttentionArguments& arguments) {
  for (size_t i = 0; i < contents.size(); ++i) {
    const Capture& capture = problem.captures[i];
    const TensorView& view = arguments.captures[i];
    switch (contents[i]) {
      case problem::Holds::kQueryStarts:
        FLASHLIFT_RETURN_IF_ERROR(verify_starts(capture, view, "queries", arguments.q.sizes[2]));
        break;
      case problem::Holds::kKeyStarts:
        FLASHLIFT_RETURN_IF_ERROR(verify_starts(capture, view, "keys", kv_length(problem, arguments)));
        break;
      case problem::Holds::kKeyCounts:
        FLASHLIFT_RETURN_IF_ERROR(verify_counts(capture, view, kv_length(problem, arguments)));
        break;
      case problem::Holds::kAnything:
      case problem::Holds::kIds:
        break;
    }
  }
  return problem.page_size > 0 ? verify_pages(problem, arguments) : Status();
}

}  // namespace flashlift::runtime
