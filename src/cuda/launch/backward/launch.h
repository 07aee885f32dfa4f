// Launches of a backward call.
#pragma once

#include <algorithm>

#include "cuda/launch/backward/main.h"
#include "support/rounding.h"

namespace flashlift::cuda {

// Kernels that take an element a thread, and then the one a grid further.
inline constexpr int kElementThreads = 256;
inline unsigned element_blocks(int64_t count) {
  constexpr int64_t kMostBlocks = 4096;
  return static_cast<unsigned>(std::min(divide_up(count, int64_t{kElementThreads}), kMostBlocks));
}

struct Grid {
  unsigned x = 0;  // 0: nothing is launched
  unsigned y = 1;
  int threads = 0;
  int64_t shared_bytes = 0;
};

inline Status launch(const BackwardCall& call, CuKernel kernel, const Grid& grid, void** parameters) {
  if (grid.x == 0) {
    return {};
  }
  return call.driver.check(
      call.driver.cuLaunchKernel(kernel, grid.x, grid.y, 1, static_cast<unsigned>(grid.threads), 1, 1,
                                 static_cast<unsigned>(grid.shared_bytes), call.stream, parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace flashlift::cuda
