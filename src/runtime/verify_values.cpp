#include "runtime/verify_values.h"

#include <algorithm>
#include <type_traits>

#include "problem/bound_problem.h"
#include "support/error.h"
#include "support/per_thread.h"
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

// One row of a page table.
struct PageRow {
  const int32_t* pages;
  int64_t stride;
  int64_t width;
  int64_t count;  // of pages in memory

  int32_t operator[](int64_t i) const { return pages[i * stride]; }
  bool is_missing(int64_t i) const { return (*this)[i] < 0 || (*this)[i] >= count; }
  // A loop without branches, since this is all that most calls need. Tables for long sequences have thousands of
  // entries in each row, which vectors read if the compiler sees that they are adjacent.
  bool has_missing() const {
    const auto last = static_cast<uint32_t>(std::min<int64_t>(count, INT32_MAX) - 1);
    const auto outside = [&](auto step) {
      uint32_t bits = 0;  // the highest one is set if an entry is negative, or the last page minus it
      for (int64_t i = 0; i < width; ++i) {
        const auto entry = static_cast<uint32_t>(pages[i * step]);
        bits |= entry | (last - entry);
      }
      return bits >> 31 != 0;
    };
    return stride == 1 ? outside(std::integral_constant<int64_t, 1>()) : outside(stride);
  }
};

// The pages that a batch's queries visit. Kept by each thread, so that a repeated call allocates nothing.
struct VisitedPages {
  visits::Visits visits;
  visits::VisitRow row;
};

VisitedPages& visited_pages() {
  static constinit thread_local PerThread<VisitedPages> visited;
  return visited.get();
}

// Whether a query of batch b and one of the first `heads` heads sees a key of a page, which intervals over the whole
// page could not exclude. The mask_mod is run. The score_mod depends on a score that is not known yet: it masks a
// key if it is -inf for every score, which intervals prove for this key alone.
bool reads_page(const Problem& problem, const AttentionArguments& arguments, VisitedPages& visited, int64_t b,
                int64_t heads, int64_t page) {
  struct Masks : problem::BoundProblem<float> {
    using BoundProblem::BoundProblem;
    using BoundProblem::mask_mod;
  };
  Masks masks(problem, arguments);
  for (int64_t kv = page * problem.page_size; kv < (page + 1) * problem.page_size; ++kv) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t q = 0; q < arguments.q.sizes[2]; ++q) {
        const visits::TileBox key{
            .b = b, .h_begin = h, .h_end = h + 1, .q_begin = q, .q_end = q + 1, .kv_begin = kv, .kv_end = kv + 1};
        if (masks.mask_mod(masks.coordinates(b, h, q, kv)) &&
            visited.visits.classify(key, visited.row.scratch) != visits::TileKind::kSkipped) {
          return true;
        }
      }
    }
  }
  return false;
}

Status verify_pages(const Problem& problem, const AttentionArguments& arguments) {
  const TensorView& table = *arguments.page_table;
  const int64_t q_len = arguments.q.sizes[2];
  if (q_len == 0) {
    return {};
  }
  VisitedPages* visited = nullptr;  // few tables need it
  for (int64_t b = 0; b < table.sizes[0]; ++b) {
    const PageRow row{static_cast<const int32_t*>(table.data) + b * table.strides[0], table.strides[1], table.sizes[1],
                      arguments.k.sizes[0]};
    if (!row.has_missing()) {
      continue;
    }
    if (visited == nullptr) {
      visited = &visited_pages();
      visited->visits.bind(problem, table.sizes[0], q_len, kv_length(problem, arguments), arguments.captures);
      visited->visits.reserve(visited->row, 0);
    }
    const int64_t heads = visited->visits.depends_on_h() ? problem.q_heads : 1;
    visited->visits.row(b, 0, problem.q_heads, 0, q_len, problem.page_size, visited->row);
    for (const visits::TileRun& run : visited->row.runs) {
      for (int64_t i = run.begin; i < run.end; ++i) {
        if (row.is_missing(i) && reads_page(problem, arguments, *visited, b, heads, i)) {
          return invalid_argument(
              "page_table: entry [{}, {}] is {}; expected 0 to {}, since its keys are not masked; key_lengths in the "
              "problem masks the keys behind a sequence's end",
              b, i, row[i], row.count - 1);
        }
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
