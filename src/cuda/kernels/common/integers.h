// Short names of integers. The host compiler and NVRTC read this file.
#pragma once

namespace flashlift::cuda {

using u32 = unsigned int;
using u64 = unsigned long long;

}  // namespace flashlift::cuda
