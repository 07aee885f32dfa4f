#include "cpu/jit/load_emitter.h"

#include <llvm/IR/Intrinsics.h>

#include <algorithm>
#include <cstddef>

#include "cpu/score_function.h"

namespace flashlift::cpu {

using llvm::Value;
namespace intrinsic = llvm::Intrinsic;

void LoadEmitter::declare(const Capture& capture, Value* captures, size_t position) {
  const auto field = [&](llvm::Type* type, size_t offset) {
    Value* at = ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), captures, position * sizeof(CaptureView) + offset);
    return ir_.CreateLoad(type, at);
  };
  Tensor tensor{capture, field(ir_.getPtrTy(), offsetof(CaptureView, data)), {}, {}};
  for (size_t d = 0; d < capture.shape.size(); ++d) {
    const bool known = capture.shape[d] > 0;  // the caller replaces an empty tensor by one zero
    tensor.sizes.push_back(known ? static_cast<Value*>(ir_.getInt64(static_cast<uint64_t>(capture.shape[d])))
                                 : field(ir_.getInt64Ty(), offsetof(CaptureView, sizes) + d * sizeof(int64_t)));
    tensor.strides.push_back(field(ir_.getInt64Ty(), offsetof(CaptureView, strides) + d * sizeof(int64_t)));
  }
  tensors_.push_back(std::move(tensor));
}

llvm::Type* LoadEmitter::memory_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kI8:
    case DType::kU8:
      return ir_.getInt8Ty();
    case DType::kI16:
    case DType::kBF16:
      return ir_.getInt16Ty();
    case DType::kF16:
      return ir_.getHalfTy();
    case DType::kI32:
    case DType::kU32:
      return ir_.getInt32Ty();
    case DType::kI64:
      return ir_.getInt64Ty();
    case DType::kF32:
      return ir_.getFloatTy();
    case DType::kF64:
      return ir_.getDoubleTy();
  }
  return nullptr;
}

Value* LoadEmitter::widen(const Tensor& tensor, Value* x) {
  const auto as = [&](llvm::Type* scalar) { return x->getType()->getWithNewType(scalar); };
  switch (tensor.capture.dtype) {
    case DType::kBool:
      return ir_.CreateICmpNE(x, llvm::Constant::getNullValue(x->getType()));
    case DType::kI8:
    case DType::kI16:
      return ir_.CreateSExt(x, as(ir_.getInt32Ty()));
    case DType::kU8:
      return ir_.CreateZExt(x, as(ir_.getInt32Ty()));
    case DType::kU32:
      return ir_.CreateZExt(x, as(ir_.getInt64Ty()));
    case DType::kBF16: {
      Value* bits = ir_.CreateShl(ir_.CreateZExt(x, as(ir_.getInt32Ty())), 16);
      return ir_.CreateBitCast(bits, as(ir_.getFloatTy()));
    }
    case DType::kF16:
      return ir_.CreateFPExt(x, as(ir_.getFloatTy()));
    case DType::kF64:
      return ir_.CreateFPTrunc(x, as(ir_.getFloatTy()));
    case DType::kI32:
    case DType::kI64:
    case DType::kF32:
      return x;
  }
  return nullptr;
}

// Clamps an index to [0, size - 1], as i64. An i32 index is widened after clamping, which takes half the vector
// instructions.
Value* LoadEmitter::clamp(Value* index, Value* size) {
  const bool narrow = index->getType()->getScalarSizeInBits() == 32;
  Value* last = ir_.CreateSub(size, ir_.getInt64(1));
  if (narrow) {
    last = ir_.CreateTrunc(ir_.CreateBinaryIntrinsic(intrinsic::smin, last, ir_.getInt64(INT32_MAX)), ir_.getInt32Ty());
  }
  if (index->getType()->isVectorTy()) {
    last = ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), last);
  }
  Value* clamped = ir_.CreateBinaryIntrinsic(intrinsic::smax, index, llvm::Constant::getNullValue(index->getType()));
  clamped = ir_.CreateBinaryIntrinsic(intrinsic::smin, clamped, last);
  return narrow ? ir_.CreateSExt(clamped, clamped->getType()->getWithNewType(ir_.getInt64Ty())) : clamped;
}

Value* LoadEmitter::uniform_offset(const Tensor& tensor, const std::vector<LoadIndex>& indices) {
  Value* offset = ir_.getInt64(0);
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d].value->getType()->isVectorTy()) {
      offset = ir_.CreateAdd(offset, ir_.CreateMul(clamp(indices[d].value, tensor.sizes[d]), tensor.strides[d]));
    }
  }
  return offset;
}

Value* LoadEmitter::lane_offsets(const Tensor& tensor, Value* offset, const std::vector<LoadIndex>& indices) {
  Value* offsets = ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), offset);
  for (size_t d = 0; d < indices.size(); ++d) {
    if (indices[d].value->getType()->isVectorTy()) {
      Value* stride = ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), tensor.strides[d]);
      offsets = ir_.CreateAdd(offsets, ir_.CreateMul(clamp(indices[d].value, tensor.sizes[d]), stride));
    }
  }
  return offsets;
}

Value* LoadEmitter::contiguous_begin(const LoadIndex& index) {
  const uint64_t lowest_lane = index.direction < 0 ? static_cast<uint64_t>(lanes_ - 1) : 0;
  return ir_.CreateSExt(ir_.CreateExtractElement(index.value, lowest_lane), ir_.getInt64Ty());
}

Value* LoadEmitter::is_contiguous(const Tensor& tensor, size_t varying, Value* begin) {
  // The comparison is unsigned, so that a negative start is out of range, too. For a tensor shorter than a vector, the
  // limit is 0.
  Value* room = ir_.CreateSub(tensor.sizes[varying], ir_.getInt64(static_cast<uint64_t>(lanes_ - 1)));
  room = ir_.CreateBinaryIntrinsic(intrinsic::smax, room, ir_.getInt64(0));
  Value* in_range = ir_.CreateICmpULT(begin, room);
  return ir_.CreateAnd(in_range, ir_.CreateICmpEQ(tensor.strides[varying], ir_.getInt64(1)));
}

void LoadEmitter::scatter(const Tensor& tensor, Value* offsets, Value* value) {
  for (int i = 0; i < lanes_; ++i) {
    const auto lane = static_cast<uint64_t>(i);
    Value* at = ir_.CreateGEP(ir_.getFloatTy(), tensor.data, ir_.CreateExtractElement(offsets, lane));
    Value* sum = ir_.CreateFAdd(ir_.CreateLoad(ir_.getFloatTy(), at), ir_.CreateExtractElement(value, lane));
    ir_.CreateStore(sum, at);
  }
}

Value* LoadEmitter::address(size_t capture, const std::vector<LoadIndex>& indices) {
  const Tensor& tensor = tensors_[capture];
  return ir_.CreateGEP(ir_.getFloatTy(), tensor.data, uniform_offset(tensor, indices));
}

void LoadEmitter::accumulate(size_t capture, const std::vector<LoadIndex>& indices, Value* value) {
  const Tensor& tensor = tensors_[capture];
  size_t varying_count = 0;
  size_t varying = 0;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (indices[d].value->getType()->isVectorTy()) {
      ++varying_count;
      varying = d;
    }
  }
  Value* offset = uniform_offset(tensor, indices);
  if (varying_count != 1 || indices[varying].direction == 0) {
    scatter(tensor, lane_offsets(tensor, offset, indices), value);
    return;
  }
  llvm::Function* function = ir_.GetInsertBlock()->getParent();
  llvm::LLVMContext& context = ir_.getContext();
  auto* fast = llvm::BasicBlock::Create(context, "add_contiguous", function);
  auto* slow = llvm::BasicBlock::Create(context, "scatter", function);
  auto* join = llvm::BasicBlock::Create(context, "added", function);
  Value* begin = contiguous_begin(indices[varying]);
  ir_.CreateCondBr(is_contiguous(tensor, varying, begin), fast, slow);

  ir_.SetInsertPoint(fast);
  Value* at = ir_.CreateGEP(ir_.getFloatTy(), tensor.data, ir_.CreateAdd(offset, begin));
  prefetch_row(tensor, indices, ir_.getFloatTy(), at, true);
  Value* ordered = indices[varying].direction < 0 ? ir_.CreateVectorReverse(value) : value;
  ir_.CreateAlignedStore(ir_.CreateFAdd(ir_.CreateAlignedLoad(value->getType(), at, llvm::Align(4)), ordered), at,
                         llvm::Align(4));
  ir_.CreateBr(join);

  ir_.SetInsertPoint(slow);
  scatter(tensor, lane_offsets(tensor, offset, indices), value);
  ir_.CreateBr(join);
  ir_.SetInsertPoint(join);
}

Value* LoadEmitter::gather(const Tensor& tensor, Value* offset, const std::vector<LoadIndex>& indices) {
  Value* offsets = lane_offsets(tensor, offset, indices);
  llvm::Type* element = memory_type(tensor.capture.dtype);
  Value* pointers = ir_.CreateGEP(element, tensor.data, offsets);
  auto* vector = llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes_));
  return ir_.CreateMaskedGather(vector, pointers, llvm::Align(size_in_bytes(tensor.capture.dtype)));
}

// Each row of a tile has only a few neighbouring elements, from which a processor cannot predict the next row. Without
// this prefetch, a full bias took as long as both products.
void LoadEmitter::prefetch_row(const Tensor& tensor, const std::vector<LoadIndex>& indices, llvm::Type* element,
                               Value* address, bool writes) {
  constexpr uint64_t kRowsAhead = 8;
  const auto query =
      std::find_if(indices.begin(), indices.end(), [](const LoadIndex& index) { return index.is_query; });
  if (query == indices.end()) {
    return;
  }
  Value* stride = tensor.strides[static_cast<size_t>(query - indices.begin())];
  Value* later = ir_.CreateGEP(element, address, ir_.CreateMul(stride, ir_.getInt64(kRowsAhead)));
  constexpr int kKeepNear = 3;
  constexpr int kData = 1;
  ir_.CreateIntrinsic(intrinsic::prefetch, {later->getType()},
                      {later, ir_.getInt32(writes ? 1 : 0), ir_.getInt32(kKeepNear), ir_.getInt32(kData)});
}

// For one varying index that increases by one for each key along a dimension of stride 1: emits one vector load if all
// of the vector's indices are in range, otherwise the gather.
Value* LoadEmitter::contiguous(const Tensor& tensor, Value* offset, size_t varying,
                               const std::vector<LoadIndex>& indices) {
  const LoadIndex& index = indices[varying];
  llvm::Function* function = ir_.GetInsertBlock()->getParent();
  llvm::LLVMContext& context = ir_.getContext();
  auto* fast = llvm::BasicBlock::Create(context, "contiguous", function);
  auto* slow = llvm::BasicBlock::Create(context, "gather", function);
  auto* join = llvm::BasicBlock::Create(context, "loaded", function);

  const bool down = index.direction < 0;
  Value* begin = contiguous_begin(index);
  ir_.CreateCondBr(is_contiguous(tensor, varying, begin), fast, slow);

  llvm::Type* element = memory_type(tensor.capture.dtype);
  auto* vector = llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes_));
  ir_.SetInsertPoint(fast);
  Value* address = ir_.CreateGEP(element, tensor.data, ir_.CreateAdd(offset, begin));
  prefetch_row(tensor, indices, element, address, false);
  Value* loaded = ir_.CreateAlignedLoad(vector, address, llvm::Align(size_in_bytes(tensor.capture.dtype)));
  loaded = down ? ir_.CreateVectorReverse(loaded) : loaded;
  auto* fast_end = ir_.GetInsertBlock();
  ir_.CreateBr(join);

  ir_.SetInsertPoint(slow);
  std::vector<LoadIndex> alone(tensor.sizes.size(), LoadIndex{ir_.getInt64(0), 0});
  alone[varying] = index;
  Value* gathered = gather(tensor, offset, alone);
  auto* slow_end = ir_.GetInsertBlock();
  ir_.CreateBr(join);

  ir_.SetInsertPoint(join);
  llvm::PHINode* result = ir_.CreatePHI(vector, 2);
  result->addIncoming(loaded, fast_end);
  result->addIncoming(gathered, slow_end);
  return result;
}

Value* LoadEmitter::emit(size_t capture, const std::vector<LoadIndex>& indices) {
  const Tensor& tensor = tensors_[capture];
  Value* offset = ir_.getInt64(0);
  size_t varying_count = 0;
  size_t varying = 0;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (indices[d].value->getType()->isVectorTy()) {
      ++varying_count;
      varying = d;
    } else {
      offset = ir_.CreateAdd(offset, ir_.CreateMul(clamp(indices[d].value, tensor.sizes[d]), tensor.strides[d]));
    }
  }
  if (varying_count == 0) {
    llvm::Type* element = memory_type(tensor.capture.dtype);
    Value* address = ir_.CreateGEP(element, tensor.data, offset);
    return widen(tensor, ir_.CreateAlignedLoad(element, address, llvm::Align(size_in_bytes(tensor.capture.dtype))));
  }
  if (varying_count == 1 && indices[varying].direction != 0) {
    return widen(tensor, contiguous(tensor, offset, varying, indices));
  }
  return widen(tensor, gather(tensor, offset, indices));
}

Value* LoadEmitter::search(size_t capture, Value* x) {
  const Tensor& tensor = tensors_[capture];
  llvm::Type* wide = x->getType()->getWithNewType(ir_.getInt64Ty());
  const auto spread = [&](Value* value) {
    return wide->isVectorTy() ? ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), value) : value;
  };
  Value* wanted = ir_.CreateSExt(x, wide);
  Value* size = tensor.sizes[0];
  Value* zeros = ir_.CreateBinaryIntrinsic(intrinsic::ctlz, size, ir_.getFalse());
  Value* largest = ir_.CreateLShr(ir_.getInt64(uint64_t{1} << 63), zeros);
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(ir_.getContext(), "search", before->getParent());
  auto* done = llvm::BasicBlock::Create(ir_.getContext(), "found", before->getParent());
  ir_.CreateBr(loop);

  ir_.SetInsertPoint(loop);
  llvm::PHINode* step = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  llvm::PHINode* found = ir_.CreatePHI(wide, 2);
  Value* next = ir_.CreateAdd(found, spread(step));
  Value* last = ir_.CreateSub(next, llvm::ConstantInt::get(wide, 1));
  Value* element = ir_.CreateSExt(emit(capture, {LoadIndex{last, 0}}), wide);
  Value* taken = ir_.CreateAnd(ir_.CreateICmpSLE(next, spread(size)), ir_.CreateICmpSLE(element, wanted));
  Value* result = ir_.CreateSelect(taken, next, found);
  Value* half = ir_.CreateLShr(step, 1);
  step->addIncoming(largest, before);
  found->addIncoming(llvm::Constant::getNullValue(wide), before);
  step->addIncoming(half, ir_.GetInsertBlock());
  found->addIncoming(result, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpNE(half, ir_.getInt64(0)), loop, done);

  ir_.SetInsertPoint(done);
  return ir_.CreateTrunc(result, wide->getWithNewType(ir_.getInt32Ty()));
}

}  // namespace flashlift::cpu
