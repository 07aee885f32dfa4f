// Draws backward problems without end: soak_backward --count N --seed S. Prints every failure; exit code 1 if any.
#include <CLI/CLI.hpp>
#include <iostream>

#include "random_backward.h"

int main(int argc, char** argv) {
  CLI::App app("Compare randomly drawn backward problems with the oracle");
  unsigned long count = 10000;
  unsigned long seed = 1;
  app.add_option("--count", count, "how many problems")->capture_default_str();
  app.add_option("--seed", seed, "the first one's seed; the others follow by one")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  unsigned long failures = 0;
  for (unsigned long i = 0; i < count; ++i) {
    const std::string failure = flashlift::testing::check_random_backward(seed + i);
    if (!failure.empty()) {
      ++failures;
      std::cout << failure << "\n";
    }
    if ((i + 1) % 500 == 0) {
      std::cout << i + 1 << " problems, " << failures << " failures" << std::endl;
    }
  }
  return failures == 0 ? 0 : 1;
}
