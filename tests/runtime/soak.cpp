// Draws problems without end: soak forward|backward --count N --seed S. Prints every failure and the worst ratio of an
// error to its bound; exit code 1 if any failed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>

#include "random_backward.h"
#include "random_forward.h"

int main(int argc, char** argv) {
  using namespace flashlift::testing;
  CLI::App app("Compare randomly drawn problems with the oracle");
  std::string direction;
  unsigned long count = 10000;
  unsigned long seed = 1;
  app.add_option("DIRECTION", direction)->required()->check(CLI::IsMember({"forward", "backward"}));
  app.add_option("--count", count, "how many problems")->capture_default_str();
  app.add_option("--seed", seed, "the first one's seed; the others follow by one")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  unsigned long failures = 0;
  double worst = 0;
  for (unsigned long i = 0; i < count; ++i) {
    const DrawnProblem drawn =
        direction == "backward" ? check_random_backward(seed + i) : check_random_forward(seed + i);
    worst = std::max(worst, drawn.ratio);
    if (!drawn.failure.empty()) {
      ++failures;
      std::cout << drawn.failure << "\n";
    }
    if ((i + 1) % 500 == 0 || i + 1 == count) {
      std::cout << i + 1 << " problems, " << failures << " failures, largest error " << worst << " of its bound"
                << std::endl;
    }
  }
  return failures == 0 ? 0 : 1;
}
