#include "cli/problem_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <system_error>
#include <vector>

#include "cli/completion.h"
#include "problem/word_texts.h"

namespace flashlift::cli {
namespace {

template <typename Number>
bool reads_all(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

const char* const kProblemHelp = "The problem, in one line; see below";

namespace {

constexpr size_t kHelpWidth = 110;

// The group's name and the forms of its words, wrapped to lines.
std::string lines_of(std::string_view group, const std::vector<problem::WordText>& words) {
  std::string lines;
  std::string line = fmt::format("  {:<10}", group);
  for (const problem::WordText& word : words) {
    if (word.group != group) {
      continue;
    }
    const std::string forms = fmt::format("{}", fmt::join(word.forms, " | "));
    if (line.size() + 3 + forms.size() > kHelpWidth) {
      lines += line + "\n";
      line = std::string(12, ' ');
    }
    line += (line.ends_with("  ") ? "" : "   ") + forms;
  }
  return lines + line + "\n";
}

}  // namespace

std::string problem_footer() {
  std::string text =
      "A problem is one argument, in quotes:\n"
      "  \"attn b2 hq32 hkv8 sq4096 skv4096 d128 bf16 causal softcap=30\"\n";
  const std::vector<problem::WordText> words = problem::word_texts();
  std::vector<std::string_view> groups;
  for (const problem::WordText& word : words) {
    if (groups.empty() || groups.back() != word.group) {
      groups.emplace_back(word.group);
      text += lines_of(word.group, words);
    }
  }
  return text +
         "`flashlift info --words` explains each word.\n"
         "Tensors are random: floats are standard normal; integers with one element per query or key are eight runs "
         "of\n"
         "ascending ids, other integers are from 0 to the number of keys; bools are true three times in four.";
}

CLI::Option* add_seconds(CLI::App& command, double& seconds, const char* meaning) {
  static constexpr double kMost = 3600;
  return command.add_option("--seconds", seconds, meaning)
      ->check([](const std::string& text) {
        double number = 0;
        return reads_all(text, number) && number >= 0 && number <= kMost
                   ? std::string()
                   : fmt::format("expected a number from 0 to {}, got {}", kMost, text);
      })
      ->option_text("FLOAT [1]");
}

CLI::Option* add_seed(CLI::App& command, uint64_t& seed, const char* meaning) {
  return command.add_option("--seed", seed, meaning)
      ->check([](const std::string& text) {
        uint64_t number = 0;
        return reads_all(text, number) ? std::string()
                                       : fmt::format("expected a whole number from 0 to 2^64 - 1, got {}", text);
      })
      ->option_text("INT [1]");
}

void DataOptions::add_to(CLI::App& command) {
  add_seed(command, seed, "Of the random tensors");
  command.add_option("--layout", layout, "Order of the dimensions of q, k, v and out in memory: bhsd or bshd")
      ->check(one_of({"bhsd", "bshd"}))
      ->option_text("TEXT [bhsd]");
}

void DataOptions::add_backward_to(CLI::App& command) {
  command.add_flag("--backward", backward, "The gradients of all inputs, from random ones of the outputs");
}

Result<Inputs> DataOptions::draw(const Problem& problem) const {
  const tuning::Layout order = layout == "bshd" ? tuning::Layout::kBshd : tuning::Layout::kBhsd;
  FLASHLIFT_ASSIGN_OR_RETURN(Inputs inputs, Inputs::draw(problem, seed, order));
  if (backward) {
    FLASHLIFT_RETURN_IF_ERROR(inputs.add_gradients(problem, seed));
  }
  return inputs;
}

void DeviceOptions::add_to(CLI::App& command) {
  command.add_option("--device", device, "Where it runs: cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->option_text("TEXT [cpu]");
  command.add_option("--implementation", implementation, "This one or none; `flashlift explain` lists them");
}

CompileOptions DeviceOptions::compile_options() const {
  return {.device = device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu,
          .device_ordinal = 0,
          .implementation = implementation};
}

}  // namespace flashlift::cli
