#include "cuda/launch/backward/captures.h"

#include <algorithm>
#include <utility>

#include "cuda/emit/backward_config.h"
#include "cuda/launch/backward/launch.h"
#include "support/error.h"

namespace flashlift::cuda {

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
  FLASHLIFT_ASSIGN_OR_RETURN(gradients->library_,
                             LoadedLibrary::compile(capture_source(problem, config, wants_gradient), compile_kernel));
  const auto find = [&](const char* name, bool runs, CuKernel& kernel) -> Status {
    if (runs) {
      FLASHLIFT_ASSIGN_OR_RETURN(kernel, gradients->library_->kernel(name, device.handle, config.config.shared_bytes));
    }
    return {};
  };
  const auto count = [&](CaptureSum sum) { return std::ranges::count(loads, sum, &CaptureLoad::sum); };
  const auto keys = count(CaptureSum::kKey);
  const auto planes = count(CaptureSum::kPlane);
  FLASHLIFT_RETURN_IF_ERROR(find("flashlift_backward_rows", config.makes_rows, gradients->rows_));
  FLASHLIFT_RETURN_IF_ERROR(find("flashlift_query_gradients", std::ssize(loads) > keys + planes, gradients->queries_));
  FLASHLIFT_RETURN_IF_ERROR(find("flashlift_key_gradients", keys > 0, gradients->keys_));
  FLASHLIFT_RETURN_IF_ERROR(find("flashlift_plane_gradients", planes > 0, gradients->planes_));
  return std::unique_ptr<const CaptureGradients>(std::move(gradients));
}

int64_t CaptureGradients::query_tiles(const ForwardParams& params) const {
  return divide_up(params.q_len, config_.config.q_tile);
}

int64_t CaptureGradients::key_blocks(const ForwardParams& params) const {
  return divide_up(params.kv_len, config_.config.q_tile) * params.batch * params.kv_heads;
}

PlaneLoad CaptureGradients::plane(size_t load, const BackwardCall& call) const {
  const CaptureLoad& of = loads_[load];
  const TensorView& view = call.arguments.forward.captures[of.capture];
  const auto own = [&](int dim, int length) { return dim >= 0 && view.sizes[dim] > 1 ? length : 1; };
  return {.load = static_cast<int>(load),
          .batches = own(of.b_dim, call.forward.batch),
          .heads = own(of.h_dim, call.forward.q_heads)};
}

int64_t CaptureGradients::plane_blocks(const PlaneLoad& plane, const ForwardParams& params) const {
  return int64_t{plane.batches} * plane.heads * query_tiles(params) * divide_up(params.kv_len, config_.config.kv_tile);
}

Status CaptureGradients::accepts(const BackwardCall& call) const {
  if (loads_.empty()) {
    return {};
  }
  const ForwardParams& params = call.forward;
  int64_t blocks = std::max(query_tiles(params) * params.batch * params.q_heads, key_blocks(params));
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
  params.q_tiles = static_cast<int>(query_tiles(params));
  params.total_tiles = params.q_tiles * params.batch * params.q_heads;
  params.heads_per_section = params.group;  // heads that share keys stay together
  call.backward.kv_tiles = static_cast<int>(divide_up(params.kv_len, config_.config.q_tile));
  const auto grid = [&](int64_t blocks) {
    const ForwardConfig& config = config_.config;
    return Grid{.x = static_cast<unsigned>(blocks), .threads = config.threads, .shared_bytes = config.shared_bytes};
  };
  void* parameters[] = {&call.forward, &call.backward, &call.row_tiles};
  if (rows_ != nullptr) {
    call.backward.rows = reinterpret_cast<RowGradient*>(workspace);
    call.backward.only_if[0] = config_.has_fallback ? call.row_tiles.any_large : nullptr;
    call.backward.only_if[1] = config_.has_fallback ? call.backward.d_out_has_low : nullptr;
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, rows_, grid(params.total_tiles), parameters));
  }
  if (queries_ != nullptr) {
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, queries_, grid(params.total_tiles), parameters));
  }
  if (keys_ != nullptr) {
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, keys_, grid(key_blocks(params)), parameters));
  }
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (loads_[i].sum == CaptureSum::kPlane) {
      PlaneLoad load = plane(i, call);
      void* plane_parameters[] = {&call.forward, &call.backward, &call.row_tiles, &load};
      FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, planes_, grid(plane_blocks(load, params)), plane_parameters));
    }
  }
  return {};
}

}  // namespace flashlift::cuda
