#include "cuda/launch/backward/preprocess.h"

#include <algorithm>
#include <cassert>

#include "cuda/launch/backward/launch.h"
#include "cuda/launch/params.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

template <typename T>
T* at(CuPointer memory, int64_t offset) {
  return reinterpret_cast<T*>(memory + static_cast<CuPointer>(offset));
}

int64_t row_count(const ForwardParams& params) { return int64_t{params.batch} * params.q_heads * params.q_len; }

// The integers of RowTiles: two of the preprocess's own, then counters and a flag of all blocks; those of parts of d_q
// and of key tiles come behind them.
constexpr int64_t kOwnFlags = 2;
constexpr int64_t kFlags = kOwnFlags + kCounters + 1;

// Tiles of a query head, with the one for no rows.
int64_t tile_count(const ForwardParams& params, int rows) { return divide_up(params.q_len, rows) + 1; }

}  // namespace

Preprocess::Preprocess(const Problem& problem, const Device& device, const RowStatistics& statistics)
    : problem_(problem),
      device_(device),
      statistics_(statistics),
      converts_d_out_(problem.d_out_dtype() != problem.dtype),  // the products take the inputs' type only
      bounds_(problem, device) {}

Status Preprocess::compile(const KernelCompiler& compile_kernel) {
  if (!converts_d_out_ && !statistics_.from_output && bounds_.empty()) {
    return {};
  }
  const KernelSource source = preprocess_source(problem_, device_.architecture, statistics_.tile > 0);
  FLASHLIFT_ASSIGN_OR_RETURN(library_, LoadedLibrary::compile(source, compile_kernel));
  if (converts_d_out_) {
    FLASHLIFT_ASSIGN_OR_RETURN(convert_d_out_, library_->kernel("flashlift_convert_d_out", device_.handle, 0));
  }
  if (statistics_.from_output) {
    FLASHLIFT_ASSIGN_OR_RETURN(row_tiles_, library_->kernel("flashlift_row_tiles", device_.handle, 0));
  }
  return bounds_.load(*library_);
}

// d_out in the inputs' type has rows of whole 16 bytes.
int64_t Preprocess::d_out_bytes(const ForwardParams& params) const {
  const auto element = static_cast<int64_t>(size_in_bytes(problem_.dtype));
  return row_count(params) * round_up(problem_.value_dim * element, 16);
}

int64_t Preprocess::flag_count(const ForwardParams& params) const {
  const int64_t key_tiles = statistics_.ring_keys > 0 ? divide_up(params.kv_len, statistics_.ring_keys) : 0;
  return kFlags + part_count(params) + 2 * int64_t{params.batch} * params.kv_heads * key_tiles;
}
int64_t Preprocess::part_count(const ForwardParams& params) const {
  return int64_t{params.batch} * params.q_heads * tile_count(params, statistics_.tile) * statistics_.parts;
}

Preprocess::Places Preprocess::lay_out(const ForwardParams& params, Layout& layout) const {
  Places places;
  if (statistics_.tile > 0) {
    const int64_t heads = int64_t{params.batch} * params.q_heads;
    const int64_t rows = heads * tile_count(params, statistics_.tile) * statistics_.tile;
    places.rows = layout.take(2 * rows * static_cast<int64_t>(sizeof(float)));
    places.flags = layout.take(flag_count(params) * static_cast<int64_t>(sizeof(int)));
  } else {
    places.rows = layout.take(row_count(params) * static_cast<int64_t>(sizeof(RowGradient)));
  }
  if (converts_d_out_) {
    places.low_flag = layout.take(sizeof(int));
    places.high = layout.take(d_out_bytes(params));
    places.low = layout.take(d_out_bytes(params));
  }
  places.bounds = layout.take(bounds_.bytes(params));
  return places;
}

void Preprocess::place(const Places& places, CuPointer memory, BackwardCall& call) const {
  const BackwardArguments& arguments = call.arguments;
  call.backward.rows = nullptr;
  call.row_tiles = {};
  if (statistics_.tile > 0) {
    call.row_tiles = {.statistics = at<float>(memory, places.rows),
                      .any_large = at<int>(memory, places.flags),
                      .any_empty = at<int>(memory, places.flags) + 1,
                      .out_residual = arguments.forward.residual ? arguments.forward.residual->data : nullptr,
                      .next_block = at<int>(memory, places.flags) + kOwnFlags,
                      .nonfinite_keys = at<int>(memory, places.flags) + kOwnFlags + kCounters,
                      .last_adders = at<int>(memory, places.flags) + kFlags,
                      .left_keys = at<int>(memory, places.flags) + kFlags + part_count(call.forward),
                      .d_q_sums = nullptr,
                      .rows = statistics_.tile,
                      .tiles = static_cast<int>(tile_count(call.forward, statistics_.tile)),
                      .cleared = static_cast<int>(flag_count(call.forward) - kOwnFlags),
                      .vector_out = has_vector_rows(arguments.forward.out, arguments.forward.residual) &&
                                    has_vector_rows(arguments.d_out)};
  } else {
    call.backward.rows = at<RowGradient>(memory, places.rows);
  }
  place_d_out(places, memory, call);
}

void Preprocess::place_d_out(const Places& places, CuPointer memory, BackwardCall& call) const {
  const TensorView& d_out = call.arguments.d_out;
  BackwardParams& backward = call.backward;
  backward.given_d_out = d_out.data;
  backward.given_d_out_strides = strides_of(d_out);
  if (!converts_d_out_) {
    backward.d_out = d_out.data;
    backward.d_out_low = nullptr;
    backward.d_out_has_low = nullptr;
    backward.d_out_strides = strides_of(d_out);
    backward.vector_d_out = has_vector_rows(d_out);
    return;
  }
  backward.d_out = at<void>(memory, places.high);
  backward.d_out_low = at<void>(memory, places.low);
  backward.d_out_has_low = at<int>(memory, places.low_flag);
  const auto element = static_cast<int64_t>(size_in_bytes(problem_.dtype));
  const long long row = round_up(problem_.value_dim * element, 16) / element;
  const ForwardParams& forward = call.forward;
  backward.d_out_strides = {row * forward.q_len * forward.q_heads, row * forward.q_len, row, 1};
  backward.vector_d_out = problem_.value_dim == row;
}

Status Preprocess::launch(const Places& places, CuPointer memory, BackwardCall& call) const {
  const CuPointer bounds = memory + static_cast<CuPointer>(places.bounds);
  if (converts_d_out_) {
    FLASHLIFT_RETURN_IF_ERROR(
        clear(call.driver, memory + static_cast<CuPointer>(places.low_flag), sizeof(int), call.stream));
    void* parameters[] = {&call.forward, &call.backward};
    const Grid grid{.x = element_blocks(row_count(call.forward) * problem_.value_dim), .threads = kElementThreads};
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, convert_d_out_, grid, parameters));
  }
  return statistics_.from_output ? fill_row_tiles(call, bounds)
                                 : bounds_.launch(call.driver, call.forward, bounds, call.stream);
}

Status Preprocess::fill_row_tiles(BackwardCall& call, CuPointer bounds) const {
  if (statistics_.asks_for_large || problem_.empty_rows == EmptyRows::kUniform) {
    FLASHLIFT_RETURN_IF_ERROR(clear(call.driver, reinterpret_cast<CuPointer>(call.row_tiles.any_large),
                                    kOwnFlags * sizeof(int), call.stream));
  }
  const int64_t rows = int64_t{call.forward.batch} * call.forward.q_heads * call.row_tiles.tiles * call.row_tiles.rows;
  const RowThreads of_row = row_threads(problem_);
  assert(call.row_tiles.rows >= kLeastRowTile);
  const int64_t blocks = divide_up(rows * of_row.threads, int64_t{kRowTileThreads} * of_row.rows);
  if (blocks > INT32_MAX) {
    return unsupported("{} rows are too many for one kernel launch; split the batch", rows);
  }
  std::vector<BoundsArgument> arguments;
  bounds_.place(call.forward, bounds, arguments);
  void* parameters[] = {&call.forward, &call.backward, &call.row_tiles, arguments.data()};
  return cuda::launch(call, row_tiles_, {.x = static_cast<unsigned>(blocks), .threads = kRowTileThreads}, parameters);
}

}  // namespace flashlift::cuda
