// LLVM's archives, built with glibc 2.36, ask for arc4random, which that version was the first to have. Answered here,
// the library runs with older ones.
#include <sys/random.h>

#include <cstdint>

extern "C" uint32_t arc4random() {
  uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {  // a signal came first
  }
  return number;
}
