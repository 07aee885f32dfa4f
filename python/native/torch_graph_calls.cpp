// Runs calls from compiled graphs without Python code.
//
// A graph calls a function in this file as a Python function. The first call with tensors of some sizes, strides and
// types goes to a function in Python, which makes all checks and leaves a record of the compiled call. Later calls with
// such tensors use the record, and allocate their results by the function that compiled graphs themselves use.
//
// Python's objects are opaque pointers here, and its functions are passed once, as in torch_calls.cpp.
#include <cstring>
#include <initializer_list>
#include <new>
#include <utility>
#include <vector>

#include "torch_calls.h"

namespace {

using Object = void;
using flashlift::torch_calls::Outcome;

constexpr int kMostResults = 4;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The functions and objects of Python that are used.
struct FlashliftTorchPython {
  const FlashliftTorchFunctions* functions;
  // Named like Python's own functions. item_of_dict and item_of_list return borrowed references.
  void (*increase)(Object*);
  void (*decrease)(Object*);
  void (*clear_error)();
  Object* (*item_of_dict)(Object* dict, Object* key);
  int64_t (*size_of_list)(Object* list);  // -1 on error
  Object* (*item_of_list)(Object* list, int64_t i);
  void* (*to_address)(Object* number);
  Object* (*from_address)(void* address);
  double (*to_double)(Object* number);
  Object* (*call)(Object* callable, Object* arguments);
  Object* (*new_tuple)(int64_t size);
  int (*set_item)(Object* tuple, int64_t i, Object* given);  // takes over the reference
  Object* (*attribute)(Object* object, Object* name);
  Object *none, *yes;                   // None and True
  Object *profiler, *is_profiling;      // a module, and the name of its function
  Object *empty_on_cpu, *empty_on_gpu;  // (sizes, strides, dtype) -> a tensor; the latter on the current device
  Object* options_of_cpu;               // () -> the address of a FlashliftRunOptions, or 0
  Object* finish;  // (address of an error or 0): after a call that failed, or used memory from Python
  Object *forward_records, *backward_records;  // dict: features to the address of the first record
  Object *forward, *backward;                  // for calls without a record
};

// The record of calls with such tensors.
struct FlashliftTorchRecord {
  const FlashliftTorchRecord* next;  // with the same features, or null
  Object* owner;                     // owns everything that is pointed to
  const FlashliftAttention* attention;
  double scale;
  uint64_t want_max;
  uint64_t want_residual;
  Object* results[kMostResults];  // arguments of `empty`, followed by null
  // q, k and v, filled by flashlift_torch_fill_record().
  DLDevice device;
  DLDataType dtype;
  int64_t sizes[3][4];
  int64_t strides[3][4];
};

// Must be called first. The pointers must stay valid.
void flashlift_torch_begin(const FlashliftTorchPython* given);
// Returns -1 with a Python exception set if a tensor has no view; 1 if no record can be for these tensors.
int flashlift_torch_fill_record(FlashliftTorchRecord* record, Object* q, Object* k, Object* v);
// METH_FASTCALL, with the arguments of the operators in their order.
Object* flashlift_torch_attention(Object* self, Object* const* arguments, int64_t count);
Object* flashlift_torch_attention_backward(Object* self, Object* const* arguments, int64_t count);

}  // extern "C"
#pragma GCC visibility pop

namespace {

const FlashliftTorchPython* python = nullptr;

// A reference that is released at the end.
class Owned {
 public:
  explicit Owned(Object* object = nullptr) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) {
      python->decrease(object_);
    }
  }
  static Owned another(Object* object) {
    python->increase(object);
    return Owned(object);
  }
  Object* get() const { return object_; }
  Object* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  Object* object_;
};

Owned tuple_of(std::initializer_list<Object*> objects) {
  Owned tuple(python->new_tuple(static_cast<int64_t>(objects.size())));
  int64_t i = 0;
  for (Object* object : objects) {
    if (!tuple) {
      break;
    }
    python->increase(object);
    python->set_item(tuple.get(), i++, object);
  }
  return tuple;
}

// Calls the Python function for calls without a record.
Object* call_python(Object* function, Object* const* arguments, int64_t count) {
  Owned tuple(python->new_tuple(count));
  if (!tuple) {
    return nullptr;
  }
  for (int64_t i = 0; i < count; ++i) {
    python->increase(arguments[i]);
    python->set_item(tuple.get(), i, arguments[i]);
  }
  return python->call(function, tuple.get());
}

bool view_of(Object* tensor, DLTensor& view) {
  if (python->functions->exchange->view_of(tensor, &view) == 0) {
    return true;
  }
  python->clear_error();  // the function that then handles the call reports the error
  return false;
}

bool is_four_dimensional(const DLTensor& view) { return view.ndim == 4 && view.strides != nullptr; }

bool is_like(const FlashliftTorchRecord& record, int i, const DLTensor& view) {
  const DLDataType& dtype = view.dtype;
  return is_four_dimensional(view) && view.device.device_type == record.device.device_type &&
         view.device.device_id == record.device.device_id && dtype.code == record.dtype.code &&
         dtype.bits == record.dtype.bits && dtype.lanes == record.dtype.lanes &&
         std::memcmp(view.shape, record.sizes[i], sizeof(record.sizes[i])) == 0 &&
         std::memcmp(view.strides, record.strides[i], sizeof(record.strides[i])) == 0;
}

// Whether a GPU can copy whole rows of it; the same condition as in kernels.py.
bool has_rows_to_copy(const DLTensor& view) {
  constexpr int64_t kUnit = 16;
  int64_t strides = 0;
  for (int d = 0; d < 3; ++d) {
    if (view.strides[d] == 0) {
      return false;
    }
    strides |= view.strides[d];
  }
  const auto address = reinterpret_cast<uintptr_t>(view.data) + view.byte_offset;
  return view.strides[3] == 1 && address % kUnit == 0 && strides * (view.dtype.bits / 8) % kUnit == 0;
}

// The record for a call, or null.
const FlashliftTorchRecord* find_record(Object* records, Object* features, Object* scale, bool want_max,
                                        bool want_residual, const DLTensor (&views)[3]) {
  Object* const first = python->item_of_dict(records, features);
  if (first == nullptr) {
    return nullptr;
  }
  const double factor = python->to_double(scale);
  const auto* record = static_cast<const FlashliftTorchRecord*>(python->to_address(first));
  for (; record != nullptr; record = record->next) {
    if (record->scale == factor && (record->want_max != 0) == want_max &&
        (record->want_residual != 0) == want_residual && is_like(*record, 0, views[0]) &&
        is_like(*record, 1, views[1]) && is_like(*record, 2, views[2])) {
      return record;
    }
  }
  return nullptr;
}

bool is_profiling() {
  const Owned says(python->attribute(python->profiler, python->is_profiling));
  if (!says) {
    python->clear_error();
  }
  return says.get() == python->yes;
}

int64_t list_size(Object* list) {
  const int64_t size = python->size_of_list(list);
  if (size < 0) {
    python->clear_error();
  }
  return size;
}

Object* or_null(Object* object) { return object == python->none ? nullptr : object; }

// A call that has a record.
class RecordedCall {
 public:
  RecordedCall(const FlashliftTorchRecord& record, Object* captures, int64_t capture_count, bool backward)
      : record_(record),
        owner_(Owned::another(record.owner)),
        words_(sizeof(FlashliftTorchCall) / sizeof(void*) + static_cast<size_t>(capture_count) * (backward ? 2 : 1)) {
    call = new (static_cast<void*>(words_.data())) FlashliftTorchCall{};
    call->functions = python->functions;
    call->attention = record.attention;
    call->capture_count = static_cast<uint64_t>(capture_count);
    for (int64_t i = 0; i < capture_count; ++i) {
      call->captures[i] = python->item_of_list(captures, i);
    }
  }

  // False with an exception set.
  bool make_results() {
    Object* const empty = record_.device.device_type == kDLCUDA ? python->empty_on_gpu : python->empty_on_cpu;
    for (int i = 0; i < kMostResults; ++i) {
      if (record_.results[i] == nullptr) {
        break;
      }
      results[i] = Owned(python->call(empty, record_.results[i]));
      if (!results[i]) {
        return false;
      }
    }
    return true;
  }

  // False with an exception set.
  bool run() {
    if (record_.device.device_type != kDLCUDA) {
      const Owned options(python->call(python->options_of_cpu, nullptr));
      if (!options) {
        return false;
      }
      call->cpu_options = static_cast<const FlashliftRunOptions*>(python->to_address(options.get()));
    }
    const Outcome outcome = flashlift::torch_calls::run(*call);
    if (outcome.raised) {
      return false;
    }
    if (outcome.error == nullptr && !outcome.asked_python) {
      return true;
    }
    const Owned error(python->from_address(outcome.error));
    const Owned given = tuple_of({error.get()});
    return static_cast<bool>(Owned(python->call(python->finish, given.get())));
  }

  FlashliftTorchCall* call;
  Owned results[kMostResults];

 private:
  const FlashliftTorchRecord& record_;
  const Owned owner_;
  std::vector<void*> words_;
};

}  // namespace

void flashlift_torch_begin(const FlashliftTorchPython* given) { python = given; }

int flashlift_torch_fill_record(FlashliftTorchRecord* record, Object* q, Object* k, Object* v) {
  Object* const tensors[3] = {q, k, v};
  for (int i = 0; i < 3; ++i) {
    DLTensor view;
    if (python->functions->exchange->view_of(tensors[i], &view) != 0) {
      return -1;
    }
    if (i == 0) {
      record->device = view.device;
      record->dtype = view.dtype;
    }
    if (!is_four_dimensional(view)) {
      return 1;
    }
    std::memcpy(record->sizes[i], view.shape, sizeof(record->sizes[i]));
    std::memcpy(record->strides[i], view.strides, sizeof(record->strides[i]));
    if (!is_like(*record, i, view)) {
      return 1;
    }
  }
  return 0;
}

// (query, key, value, captures, sinks, seed, features, scale, want_max, f32_out, want_residual)
Object* flashlift_torch_attention(Object*, Object* const* given, int64_t count) {
  constexpr int64_t kArguments = 11;
  const auto elsewhere = [&] { return call_python(python->forward, given, count); };
  if (count != kArguments || given[5] != python->none || given[9] == python->yes || is_profiling()) {
    return elsewhere();
  }
  const int64_t captures = list_size(given[3]);
  DLTensor views[3];
  if (captures < 0 || !view_of(given[0], views[0]) || !view_of(given[1], views[1]) || !view_of(given[2], views[2])) {
    return elsewhere();
  }
  const FlashliftTorchRecord* const record = find_record(python->forward_records, given[6], given[7],
                                                         given[8] == python->yes, given[10] == python->yes, views);
  if (record == nullptr) {
    return elsewhere();
  }
  RecordedCall recorded(*record, given[3], captures, false);
  if (!recorded.make_results()) {
    return nullptr;
  }
  FlashliftTorchCall& call = *recorded.call;
  call.q = given[0];
  call.k = given[1];
  call.v = given[2];
  call.sinks = or_null(given[4]);
  call.out = recorded.results[0].get();
  call.lse = recorded.results[1].get();
  call.row_max = record->want_max != 0 ? recorded.results[2].get() : nullptr;
  call.residual = record->want_residual != 0 ? recorded.results[3].get() : nullptr;
  if (!recorded.run()) {
    return nullptr;
  }
  return tuple_of({recorded.results[0].get(), recorded.results[1].get(), recorded.results[2].get(),
                   recorded.results[3].get()})
      .release();
}

// (grad_out, grad_lse, query, key, value, out, lse, residual, captures, sinks, seed, wanted, features, scale)
Object* flashlift_torch_attention_backward(Object*, Object* const* given, int64_t count) {
  constexpr int64_t kArguments = 14;
  const auto elsewhere = [&] { return call_python(python->backward, given, count); };
  if (count != kArguments || given[9] != python->none || given[10] != python->none || list_size(given[11]) != 0 ||
      is_profiling()) {
    return elsewhere();
  }
  const int64_t captures = list_size(given[8]);
  DLTensor views[3];
  DLTensor d_out;
  DLTensor residual;
  if (captures < 0 || !view_of(given[2], views[0]) || !view_of(given[3], views[1]) || !view_of(given[4], views[2]) ||
      !view_of(given[0], d_out) || !view_of(given[7], residual)) {
    return elsewhere();
  }
  DLTensor out;
  if (!view_of(given[5], out) || std::memcmp(&out.dtype, &views[0].dtype, sizeof(out.dtype)) != 0 ||
      !is_four_dimensional(d_out) || (d_out.device.device_type == kDLCUDA && !has_rows_to_copy(d_out))) {
    return elsewhere();
  }
  const FlashliftTorchRecord* const record =
      find_record(python->backward_records, given[12], given[13], false, residual.ndim == out.ndim, views);
  if (record == nullptr) {
    return elsewhere();
  }
  RecordedCall recorded(*record, given[8], captures, true);
  if (!recorded.make_results()) {
    return nullptr;
  }
  FlashliftTorchCall& call = *recorded.call;
  call.d_out = given[0];
  call.d_lse = or_null(given[1]);
  call.q = given[2];
  call.k = given[3];
  call.v = given[4];
  call.out = given[5];
  call.lse = given[6];
  call.residual = record->want_residual != 0 ? given[7] : nullptr;
  call.d_q = recorded.results[0].get();
  call.d_k = recorded.results[1].get();
  call.d_v = recorded.results[2].get();
  if (!recorded.run()) {
    return nullptr;
  }
  return tuple_of({call.d_q, call.d_k, call.d_v}).release();
}
