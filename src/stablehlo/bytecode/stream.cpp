#include "stablehlo/bytecode/stream.h"

#include <bit>
#include <cstring>

namespace flashlift::stablehlo::bytecode {
namespace {

constexpr uint8_t kFilling = 0xCB;

}  // namespace

std::string_view ByteReader::bytes(uint64_t size) {
  if (*failure_) {
    return {};
  }
  if (size > rest_.size()) {
    failure_->invalid("byte {}: expected {} more bytes, got {}: the bytecode is cut off or damaged", offset_, size,
                      rest_.size());
    return {};
  }
  const std::string_view found = rest_.substr(0, size);
  rest_.remove_prefix(size);
  offset_ += size;
  return found;
}

uint8_t ByteReader::byte() {
  const std::string_view found = bytes(1);
  return found.empty() ? 0 : static_cast<uint8_t>(found.front());
}

// The number of trailing zero bits of the first byte is the number of bytes that follow.
uint64_t ByteReader::varint() {
  const uint8_t first = byte();
  if (*failure_ || (first & 1) != 0) {
    return first >> 1;
  }
  const int following = first == 0 ? 8 : std::countr_zero(first);
  const std::string_view more = bytes(static_cast<uint64_t>(following));
  if (more.empty()) {  // the bytes end too early
    return 0;
  }
  uint64_t value = 0;
  std::memcpy(&value, more.data(), more.size());
  if (following == 8) {
    return value;
  }
  return (value << (7 - following)) | (static_cast<uint64_t>(first) >> (following + 1));
}

int64_t ByteReader::signed_varint() {
  const uint64_t value = varint();
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

uint64_t ByteReader::varint_with_flag(bool& flag) {
  const uint64_t value = varint();
  flag = (value & 1) != 0;
  return value >> 1;
}

size_t ByteReader::count() {
  const uint64_t value = varint();
  if (value > left()) {
    failure_->invalid("byte {}: expected {} parts in the {} bytes that are left: the bytecode is damaged", offset_,
                      value, left());
    return 0;
  }
  if (value > kMaxCount) {
    failure_->unsupported("byte {}: {} parts in one list or table; at most {} are read", offset_, value, kMaxCount);
    return 0;
  }
  return value;
}

std::string_view ByteReader::zero_ended() {
  const size_t size = left() == 0 ? std::string_view::npos : rest_.find('\0');
  if (size == std::string_view::npos) {
    failure_->invalid("byte {}: expected a text that ends in a zero byte", offset_);
    return {};
  }
  const std::string_view found = bytes(size);
  (void)byte();
  return found;
}

void ByteReader::align(uint64_t alignment) {
  if (!std::has_single_bit(alignment)) {
    failure_->invalid("byte {}: expected an alignment that is a power of two, got {}", offset_, alignment);
    return;
  }
  while (ok() && (offset_ & (alignment - 1)) != 0) {
    if (byte() != kFilling) {
      failure_->invalid("byte {}: expected filling up to a multiple of {} bytes", offset_ - 1, alignment);
    }
  }
}

}  // namespace flashlift::stablehlo::bytecode
