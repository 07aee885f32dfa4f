// Floating-point arithmetic as a thread begins with it, whatever the caller has chosen.
#pragma once

#include <cfenv>

namespace flashlift {

// As long as this object exists, its thread rounds to nearest, keeps denormal numbers, and no operation traps. A caller
// may have chosen otherwise (fesetround, feenableexcept, flushing of denormal numbers). Results would then depend on
// the thread that computes them, and an exponential that overflows to infinity, as it should, would end the process.
class DefaultFloats {
 public:
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

#ifdef __SSE2__
  // Not fesetenv(): it also sets the x87's control word, which nothing uses, and takes ten times as long.
  DefaultFloats() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(kAtStart); }
  ~DefaultFloats() { __builtin_ia32_ldmxcsr(before_); }

 private:
  static constexpr unsigned kAtStart = 0x1f80;
  unsigned before_;
#else
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_{};
#endif
};

}  // namespace flashlift
