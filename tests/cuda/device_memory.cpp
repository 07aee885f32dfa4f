#include "cuda/device_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace flashlift::testing {
namespace {

// The elements between the lowest and the highest address of a view, relative to its data pointer.
struct Span {
  int64_t first = 0;
  int64_t count = 1;
};

Span span_of(const TensorView& view) {
  Span span;
  int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    const int64_t reach = view.strides[d] * (view.sizes[d] - 1);
    (reach < 0 ? span.first : last) += reach;
  }
  span.count = view.element_count() == 0 ? 0 : last - span.first + 1;
  return span;
}

void check(const cuda::Driver& driver, cuda::CuResult result, const char* call) {
  const Status status = driver.check(result, call);
  ASSERT_TRUE(status.ok()) << status.error().message;
}

}  // namespace

DeviceArguments::DeviceArguments(const cuda::Driver& driver, const AttentionArguments& host) : driver_(driver) {
  views.q = upload(host.q);
  views.k = upload(host.k);
  views.v = upload(host.v);
  views.out = upload(host.out);
  for (const TensorView& capture : host.captures) {
    views.captures.push_back(upload(capture));
  }
  if (host.sinks) {
    views.sinks = upload(*host.sinks);
  }
  if (host.lse) {
    views.lse = upload(*host.lse);
  }
  if (host.row_max) {
    views.row_max = upload(*host.row_max);
  }
  if (host.page_table) {
    views.page_table = upload(*host.page_table);
  }
  views.dropout_seed = host.dropout_seed;
}

DeviceArguments::~DeviceArguments() {
  for (const cuda::CuPointer pointer : memory_) {
    driver_.cuMemFree(pointer);
  }
}

TensorView DeviceArguments::upload(const TensorView& view) {
  const Span span = span_of(view);
  const auto element = static_cast<int64_t>(size_in_bytes(view.dtype));
  TensorView result = view;
  cuda::CuPointer pointer = 0;
  const size_t bytes = static_cast<size_t>(span.count * element);
  check(driver_, driver_.cuMemAlloc(&pointer, std::max<size_t>(bytes, 16)), "cuMemAlloc");
  memory_.push_back(pointer);
  if (bytes > 0) {
    check(driver_, driver_.cuMemcpyHtoD(pointer, static_cast<std::byte*>(view.data) + span.first * element, bytes),
          "cuMemcpyHtoD");
  }
  result.data = reinterpret_cast<std::byte*>(pointer) - span.first * element;
  return result;
}

void DeviceArguments::download(const TensorView& device, const TensorView& host) {
  const Span span = span_of(host);
  const auto element = static_cast<int64_t>(size_in_bytes(host.dtype));
  if (span.count > 0) {
    check(driver_,
          driver_.cuMemcpyDtoH(static_cast<std::byte*>(host.data) + span.first * element,
                               reinterpret_cast<cuda::CuPointer>(device.data) + span.first * element,
                               static_cast<size_t>(span.count * element)),
          "cuMemcpyDtoH");
  }
}

void DeviceArguments::fetch(const AttentionArguments& host) {
  check(driver_, driver_.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  download(views.out, host.out);
  if (host.lse) {
    download(*views.lse, *host.lse);
  }
  if (host.row_max) {
    download(*views.row_max, *host.row_max);
  }
}

}  // namespace flashlift::testing
