#include "cuda/launch/backward/captures.h"

#include <algorithm>
#include <bit>
#include <future>
#include <utility>

#include "cuda/emit/backward_config.h"
#include "cuda/kernels/common/exact_sum.h"
#include "cuda/launch/backward/launch.h"
#include "cuda/launch/backward/tensor_maps.h"
#include "support/beside.h"
#include "support/error.h"

namespace flashlift::cuda {

namespace {

int64_t query_tiles(const ForwardConfig& config, const ForwardParams& params) {
  return divide_up(params.q_len, config.q_tile);
}

int64_t key_blocks(const ForwardConfig& config, const ForwardParams& params) {
  return divide_up(params.kv_len, config.q_tile) * params.batch * params.kv_heads;
}

Grid grid_of(const ForwardConfig& config, int64_t blocks) {
  return {.x = static_cast<unsigned>(blocks), .threads = config.threads, .shared_bytes = config.shared_bytes};
}

}  // namespace

Result<std::unique_ptr<const CaptureGradients>> CaptureGradients::compile(const Problem& problem, const Device& device,
                                                                          const BackwardConfig& main,
                                                                          const std::vector<bool>& wants_gradient,
                                                                          const KernelCompiler& compile_kernel) {
  auto gradients = std::make_unique<CaptureGradients>();
  const std::vector<CaptureLoad>& loads = gradients->loads_ = capture_loads(problem, wants_gradient);
  if (loads.empty()) {  // the scores do not follow the tensors: their gradients are 0
    return std::unique_ptr<const CaptureGradients>(std::move(gradients));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(gradients->config_, choose_capture_config(problem, main, loads));
  const CaptureConfig& config = gradients->config_;
  const CaptureSources sources = capture_sources(problem, config, loads, wants_gradient);
  const auto begin = [&](const std::optional<KernelSource>& source, Library& library) {
    return begin_beside([&]() -> Status {
      if (source) {
        FLASHLIFT_ASSIGN_OR_RETURN(library, LoadedLibrary::compile(*source, compile_kernel));
      }
      return {};
    });
  };
  std::future<Status> portable = begin(sources.portable, gradients->portable_);
  std::future<Status> hopper_queries = begin(sources.queries, gradients->hopper_queries_);
  std::future<Status> hopper_keys = begin(sources.keys, gradients->hopper_keys_);
  std::future<Status> hopper_planes = begin(sources.planes, gradients->hopper_planes_);
  FLASHLIFT_RETURN_IF_ERROR(portable.get());
  FLASHLIFT_RETURN_IF_ERROR(hopper_queries.get());
  FLASHLIFT_RETURN_IF_ERROR(hopper_keys.get());
  FLASHLIFT_RETURN_IF_ERROR(hopper_planes.get());
  gradients->multiprocessors_ = device.multiprocessors;
  const auto find = [&](const char* name, const Library& library, const ForwardConfig& with,
                        CuKernel& kernel) -> Status {
    FLASHLIFT_ASSIGN_OR_RETURN(kernel, library->kernel(name, device.handle, with.shared_bytes));
    return {};
  };
  const auto count = [&](CaptureSum sum) { return std::ranges::count(loads, sum, &CaptureLoad::sum); };
  const auto keys = count(CaptureSum::kKey);
  const auto planes = count(CaptureSum::kPlane);
  const Library& of_queries = config.hopper ? gradients->hopper_queries_ : gradients->portable_;
  if (config.makes_rows) {
    FLASHLIFT_RETURN_IF_ERROR(find("flashlift_backward_rows", of_queries, gradients->of_queries(), gradients->rows_));
  }
  if (std::ssize(loads) > keys + planes) {
    FLASHLIFT_RETURN_IF_ERROR(
        find("flashlift_query_gradients", of_queries, gradients->of_queries(), gradients->queries_));
  }
  if (keys > 0) {
    FLASHLIFT_RETURN_IF_ERROR(find("flashlift_key_gradients",
                                   config.hopper ? gradients->hopper_keys_ : gradients->portable_, gradients->of_keys(),
                                   gradients->keys_));
  }
  if (planes > 0) {
    FLASHLIFT_RETURN_IF_ERROR(find("flashlift_plane_gradients",
                                   config.hopper ? gradients->hopper_planes_ : gradients->portable_,
                                   gradients->of_planes(), gradients->planes_));
  }
  return std::unique_ptr<const CaptureGradients>(std::move(gradients));
}

PlaneLoad CaptureGradients::plane(size_t load, const BackwardCall& call) const {
  const CaptureLoad& of = loads_[load];
  const TensorView& view = call.arguments.forward.captures[of.capture];
  const auto own = [&](int dim, int length) { return dim >= 0 && view.sizes[dim] > 1 ? length : 1; };
  PlaneLoad plane{.load = static_cast<int>(load),
                  .batches = own(of.b_dim, call.forward.batch),
                  .heads = own(of.h_dim, call.forward.q_heads),
                  .key_tiles = 1};
  if (config_.hopper) {  // several blocks for each multiprocessor, for masks that leave some blocks little to do
    constexpr int64_t kBlocks = 4;
    const int64_t kv_tiles = divide_up(call.forward.kv_len, of_planes().kv_tile);
    const int64_t longest = plane_blocks(plane, call.forward) / (kBlocks * multiprocessors_);
    plane.key_tiles = static_cast<int>(std::clamp(longest, int64_t{1}, std::max(kv_tiles, int64_t{1})));
  }
  return plane;
}

int64_t CaptureGradients::plane_blocks(const PlaneLoad& plane, const ForwardParams& params) const {
  const int64_t kv_tiles = divide_up(params.kv_len, of_planes().kv_tile);
  return int64_t{plane.batches} * plane.heads * query_tiles(of_planes(), params) * divide_up(kv_tiles, plane.key_tiles);
}

std::vector<ElementTable> CaptureGradients::tables(const BackwardCall& call) const {
  constexpr int64_t kMostWords = 16;  // more are for exponents that hardly occur
  constexpr int64_t kMostCopies = 32;
  const int64_t bytes = config_.hopper ? config_.hopper->queries.table_bytes : config_.table_bytes;
  const int64_t available = (bytes - kBlockSumHeader) / static_cast<int64_t>(sizeof(int));
  std::vector<ElementTable> shapes(1);  // the kernel has the argument in any case
  for (const CaptureLoad& load : loads_) {
    if (load.table < 0) {
      continue;
    }
    const TensorView& view = call.arguments.forward.captures[load.capture];
    int64_t elements = 1;
    for (int d = 0; d < view.rank; ++d) {
      elements *= (load.moves >> d & 1) != 0 ? view.sizes[d] : 1;
    }
    shapes.resize(std::max(shapes.size(), static_cast<size_t>(load.table) + 1));
    if (elements > 0 && elements * kLeastTableWords <= available) {
      const int64_t words = std::min(available / elements, kMostWords);
      const int64_t copies = std::min(available / (elements * words), kMostCopies);
      const auto used = static_cast<int>(std::bit_floor(static_cast<uint64_t>(copies)));
      shapes[static_cast<size_t>(load.table)] = {
          .elements = static_cast<int>(elements),
          .bits = static_cast<unsigned>(words * kBlockWordBits),
          .copies = used,
          .element_bytes = static_cast<int>(sizeof(int)) * used,
          .word_bytes = static_cast<int>(sizeof(int)) * used * static_cast<int>(elements)};
    }
  }
  return shapes;
}

Status CaptureGradients::accepts(const BackwardCall& call) const {
  if (loads_.empty()) {
    return {};
  }
  const ForwardParams& params = call.forward;
  int64_t blocks =
      std::max(query_tiles(of_queries(), params) * params.batch * params.q_heads, key_blocks(of_keys(), params));
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (loads_[i].sum == CaptureSum::kPlane) {
      blocks = std::max(blocks, plane_blocks(plane(i, call), params));
    }
  }
  return blocks > INT32_MAX / 2 ? unsupported("{} tiles are too many for one kernel launch; split the batch", blocks)
                                : Status();
}

int64_t CaptureGradients::workspace_bytes(const ForwardParams& params) const {
  return rows_ != nullptr
             ? int64_t{params.batch} * params.q_heads * params.q_len * static_cast<int64_t>(sizeof(RowGradient))
             : 0;
}

bool CaptureGradients::stores(size_t capture, const BackwardCall& call) const {
  const auto load = std::ranges::find(loads_, capture, &CaptureLoad::capture);
  if (load == loads_.end() || load->sum != CaptureSum::kPlane) {
    return false;
  }
  const TensorView& view = call.arguments.forward.captures[capture];
  const auto covers = [&](int dim, int length) { return dim < 0 || view.sizes[dim] >= length; };
  const auto broadcasts = [&](int dim) { return dim >= 0 && view.sizes[dim] == 1; };
  const ForwardParams& params = call.forward;
  return covers(load->q_dim, params.q_len) && covers(load->kv_dim, params.kv_len) &&
         (broadcasts(load->b_dim) || covers(load->b_dim, params.batch)) &&
         (broadcasts(load->h_dim) || covers(load->h_dim, params.q_heads));
}

Status CaptureGradients::launch(BackwardCall& call, CuPointer workspace) const {
  if (loads_.empty()) {
    return {};
  }
  ForwardParams& params = call.forward;
  params.heads_per_section = params.group;  // heads that share keys stay together
  BackwardMaps maps;
  if (config_.hopper) {
    FLASHLIFT_ASSIGN_OR_RETURN(maps, encode_maps(call, call.backward.d_out));
    params.q_map = maps.q;
    params.k_map = maps.k;
    params.v_map = maps.v;
  }
  void* parameters[] = {&call.forward, &call.backward, &call.row_tiles, &maps.d_out};  // the last for Hopper's
  params.q_tiles = static_cast<int>(query_tiles(of_queries(), params));
  params.total_tiles = params.q_tiles * params.batch * params.q_heads;
  const auto launch_queries = [&](CuKernel kernel) {
    return cuda::launch(call, kernel, grid_of(of_queries(), params.total_tiles), parameters);
  };
  if (rows_ != nullptr) {
    call.backward.rows = reinterpret_cast<RowGradient*>(workspace);
    call.backward.only_if[0] = config_.has_fallback ? call.row_tiles.any_large : nullptr;
    call.backward.only_if[1] = config_.has_fallback ? call.backward.d_out_has_low : nullptr;
    FLASHLIFT_RETURN_IF_ERROR(launch_queries(rows_));
  }
  if (queries_ != nullptr) {
    std::vector<ElementTable> shapes = tables(call);
    std::vector<void*> query_parameters(parameters, parameters + (config_.hopper ? 4 : 3));
    query_parameters.push_back(shapes.data());
    FLASHLIFT_RETURN_IF_ERROR(
        cuda::launch(call, queries_, grid_of(of_queries(), params.total_tiles), query_parameters.data()));
  }
  if (keys_ != nullptr) {
    call.backward.kv_tiles = static_cast<int>(divide_up(params.kv_len, of_keys().q_tile));
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, keys_, grid_of(of_keys(), key_blocks(of_keys(), params)), parameters));
  }
  params.q_tiles = static_cast<int>(query_tiles(of_planes(), params));
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (loads_[i].sum == CaptureSum::kPlane) {
      PlaneLoad load = plane(i, call);
      void* plane_parameters[] = {&call.forward, &call.backward, &call.row_tiles, &load, &maps.d_out};
      FLASHLIFT_RETURN_IF_ERROR(
          cuda::launch(call, planes_, grid_of(of_planes(), plane_blocks(load, params)), plane_parameters));
    }
  }
  return {};
}

}  // namespace flashlift::cuda
