// The capabilities of a processor as a set. None implies another.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace flashlift::cpu {

// Each is required by some implementation or makes it faster. Other architectures may add their own.
enum class Capability : uint8_t {
  kAvx2,         // x86: AVX2, FMA and F16C
  kAvx512,       // x86: AVX-512 F, BW, DQ and VL
  kAvx512Bf16,   // x86: the bf16 dot product of AVX-512
  kFastBf16Dot,  // x86: the dot product is faster than f32 multiply-adds
  kAmx,          // x86: AMX-TILE and AMX-BF16, and the operating system enables their registers
};
inline constexpr Capability kAllCapabilities[] = {Capability::kAvx2, Capability::kAvx512, Capability::kAvx512Bf16,
                                                  Capability::kFastBf16Dot, Capability::kAmx};

// A readable name, such as "AVX2 with FMA and F16C".
const char* describe(Capability capability);

class Capabilities {
 public:
  constexpr Capabilities() = default;
  constexpr Capabilities(std::initializer_list<Capability> list) {
    for (const Capability one : list) {
      add(one);
    }
  }

  constexpr void add(Capability one) { bits_ |= bit(one); }
  constexpr bool has(Capability one) const { return (bits_ & bit(one)) != 0; }
  constexpr bool has_all(Capabilities others) const { return (others.bits_ & ~bits_) == 0; }
  // A capability of `wanted` that is missing; nothing if none is.
  std::optional<Capability> missing(Capabilities wanted) const {
    for (const Capability one : kAllCapabilities) {
      if (wanted.has(one) && !has(one)) {
        return one;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr uint32_t bit(Capability one) { return uint32_t{1} << static_cast<unsigned>(one); }

  uint32_t bits_ = 0;
};

// The capabilities of this processor and operating system, regardless of the environment.
Capabilities detect_capabilities();

}  // namespace flashlift::cpu
