// LLVM's archives were built with glibc 2.36 and call arc4random, which is new in that version. With this definition,
// the library also runs with older ones.
#include <sys/random.h>

#include <cstdint>

extern "C" uint32_t arc4random() {
  uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {  // a signal interrupted it
  }
  return number;
}
