// Converts XLA's values to Flashlift's and back, for the handlers of every platform.
#pragma once

#include <vector>

#include "xla/ffi/api/ffi.h"
#include "xla/ffi/call.h"

namespace flashlift::xla {

namespace ffi = ::xla::ffi;

ffi::Error to_ffi(const Error& error);
Result<Attributes> to_attributes(const ffi::Dictionary& dictionary);

// The buffers of one execution.
struct Buffers {
  std::vector<Buffer> operands;
  std::vector<Buffer> results;
};
Result<Buffers> to_buffers(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets);

}  // namespace flashlift::xla
