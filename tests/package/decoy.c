/* Built under the names of the libraries that Flashlift needs: it says so when it is loaded. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void report(void) {
  puts("the decoy was loaded");
  fflush(stdout);
  _Exit(42);
}
