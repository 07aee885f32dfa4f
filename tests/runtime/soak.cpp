// Draws problems until COUNT are done: soak forward|backward --count N --seed S --isa NAME. Prints every failure, and
// every half minute the number of problems done, the rate, the time left and how close errors came to their limits.
// Exit code 1 if any problem failed, 77 if the processor lacks the instruction set.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "plan/cpu_list.h"
#include "random_backward.h"
#include "random_forward.h"

namespace {

constexpr int kNotHere = 77;
constexpr std::chrono::seconds kReportEvery(30);

// "12.5 a second, 13 min left"
std::string pace(unsigned long done, unsigned long count, std::chrono::duration<double> taken) {
  const double rate = static_cast<double>(done) / taken.count();
  const double left = static_cast<double>(count - done) / rate;
  return fmt::format("{:.1f} a second, {:.0f} {} left", rate, left < 120 ? left : left / 60, left < 120 ? "s" : "min");
}

// Errors divided by their limits, of all problems so far.
class Ratios {
 public:
  explicit Ratios(const char* name) : name_(name) {}

  void add(double ratio) { ratios_.push_back(ratio); }

  void print() {
    std::sort(ratios_.begin(), ratios_.end());
    std::cout << "  " << name_ << " error over its limit:";
    for (const double part : {0.5, 0.9, 0.99, 0.999, 1.0}) {
      const auto at = static_cast<size_t>(std::ceil(part * static_cast<double>(ratios_.size())));
      std::cout << "  " << 100 * part << " % " << ratios_[std::max<size_t>(at, 1) - 1];
    }
    std::cout << std::endl;
  }

 private:
  const char* name_;
  std::vector<double> ratios_;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace flashlift::testing;
  CLI::App app("Compare randomly drawn problems with the oracle");
  std::string direction;
  unsigned long count = 10000;
  unsigned long seed = 1;
  app.add_option("DIRECTION", direction)->required()->check(CLI::IsMember({"forward", "backward"}));
  app.add_option("--count", count, "how many problems")->capture_default_str();
  std::string isa;
  app.add_option("--isa", isa, "the highest instruction set to use: avx2, avx512, avx512_bf16 or amx");
  app.add_option("--seed", seed, "the first one's seed; the others follow by one")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  DrawOptions options;
  if (!isa.empty()) {
    setenv("FLASHLIFT_ISA", isa.c_str(), 1);
    const auto machine = flashlift::plan::this_cpu();
    const auto list = flashlift::plan::cpu_list();
    const auto row = std::ranges::find(list, "cpu_" + isa, &flashlift::plan::CpuImplementation::name);
    if (!machine.ok() || row == list.end()) {
      std::cout << (machine.ok() ? "no instruction set is named " + isa : machine.error().message) << std::endl;
      return 1;
    }
    if (!machine->has.has_all(flashlift::cpu::needs_of(row->isa))) {
      std::cout << "this processor has no " << isa << std::endl;
      return kNotHere;
    }
    // If f32 products are faster, products of bf16 operands run only if they are requested.
    if (row->bf16_products) {
      options.bf16_implementation = row->name();
    }
  }
  unsigned long failures = 0;
  Ratios mean("mean"), largest("largest"), row("worst row's");
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Clock::time_point next = start + kReportEvery;
  for (unsigned long i = 0; i < count; ++i) {
    const DrawnProblem drawn =
        direction == "backward" ? check_random_backward(seed + i, options) : check_random_forward(seed + i, options);
    mean.add(drawn.judgement.mean.ratio());
    largest.add(drawn.judgement.largest.ratio());
    row.add(drawn.judgement.row.ratio());
    if (!drawn.failure.empty()) {
      ++failures;
      std::cout << drawn.failure << "\n";
    }
    if (Clock::now() >= next || i + 1 == count) {
      next = Clock::now() + kReportEvery;
      std::cout << i + 1 << " of " << count << " problems, " << failures << " failures, "
                << pace(i + 1, count, Clock::now() - start) << std::endl;
      for (Ratios* ratios : {&mean, &largest, &row}) {
        ratios->print();
      }
    }
  }
  return failures == 0 ? 0 : 1;
}
