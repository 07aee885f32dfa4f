// The command line: parses the arguments, runs one subcommand, and turns its outcome into an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/completion.h"
#include "cli/output.h"
#include "support/spelling.h"
#include "support/version.h"

namespace flashlift::cli {
namespace {

constexpr const char* kProblem = "attn h8 s1024 d64 causal";

constexpr const char* kFooter =
    "Exit codes: 0 success, 1 a check failed, 2 invalid arguments or input.\n"
    "Each subcommand has its own --help.";

// The subcommand that was parsed, for "run `flashlift run --help`".
std::string called_name(const CLI::App& app) {
  for (const CLI::App* subcommand : app.get_subcommands()) {
    return app.get_name() + " " + subcommand->get_name();
  }
  return app.get_name();
}

// Joins the words from `first` on to one argument in quotes.
std::string in_quotes(int argc, char** argv, int first) {
  std::string text = "\"";
  for (int i = first; i < argc && argv[i][0] != '-'; ++i) {
    text += (i == first ? "" : " ") + std::string(argv[i]);
  }
  return text + "\"";
}

// Known words that may have been meant: those with a similar spelling, otherwise those that start with this word.
std::string meant_by(const std::string& word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> near =
      similar_words(word, std::vector<std::string_view>(known.begin(), known.end()));
  std::vector<std::string> meant(near.begin(), near.end());
  if (meant.empty() && word.find_first_not_of('-') != std::string::npos) {
    std::ranges::copy_if(known, std::back_inserter(meant),
                         [&](const std::string& one) { return one.starts_with(word); });
  }
  return did_you_mean(meant);
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

// kind: "a subcommand" or "a subcommand of NAME"
std::string unknown_subcommand_text(const std::string& word, std::string_view kind, const CLI::App& app) {
  std::vector<std::string> known = subcommands_of(app);
  const std::string listed = fmt::format("expected one of {}", fmt::join(known, ", "));
  if (app.get_option_no_throw("--" + word) != nullptr) {
    return fmt::format("{} is not {}; did you mean `--{}`?", word, kind, word);
  }
  known.emplace_back("help");
  const std::string meant = meant_by(word, known);
  return fmt::format("{} is not {}; {}", word, kind, meant.empty() ? listed : meant);
}

// The error for a word in a subcommand's place that is none, or "".
std::string unknown_subcommand(const CLI::App& app, int argc, char** argv) {
  const auto is_word = [&](int at) { return argc > at && argv[at][0] != '-'; };
  if (app.get_subcommands().empty()) {
    return is_word(1) ? unknown_subcommand_text(argv[1], "a subcommand", app) : "";
  }
  const CLI::App& called = *app.get_subcommands().front();
  const bool lacks_inner = !subcommands_of(called).empty() && called.get_subcommands().empty();
  return lacks_inner && is_word(2)
             ? unknown_subcommand_text(argv[2], fmt::format("a subcommand of {}", called.get_name()), called)
             : "";
}

// The first argument that looks like an option but is not one of this command's, or "".
std::string unknown_option(const CLI::App& command, int argc, char** argv) {
  for (int i = 1; i < argc && argv[i] != std::string_view("--"); ++i) {
    const std::string name = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    const bool is_option = name.starts_with("--") || (name.starts_with("-") && name.find_first_of("0123456789") != 1);
    if (is_option && name != "-" && command.get_option_no_throw(name) == nullptr) {
      // `-oFILE` is the option `-o`, too.
      if (name.starts_with("--") || command.get_option_no_throw(name.substr(0, 2)) == nullptr) {
        return name;
      }
    }
  }
  return "";
}

std::string unknown_option_text(const std::string& name, const CLI::App& command) {
  const std::string asked = name.starts_with("--") ? name : "-" + name;  // also finds `-check`
  const std::string meant = meant_by(asked, options_of(command));
  return fmt::format("{} is not an option of {}{}", name, command.get_name(), meant.empty() ? "" : "; " + meant);
}

// The option's help text, for use within a sentence.
std::string description_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[1])) != 0) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return text;
}

// Rewrites CLI11's messages about this command's options in words.
std::string plain(const std::string& message, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (message == name + " is required") {
      return fmt::format("{} is missing: {}", name, description_of(*option));
    }
    if (message.starts_with(name + ": ") && message.ends_with(" missing")) {
      return fmt::format("{} needs a value: {}", name, description_of(*option));
    }
    if (message.starts_with(name + ": At Most 1 required")) {
      return fmt::format("{} is given more than once", name);
    }
  }
  constexpr std::string_view kUnexpected = "The following argument was not expected: ";
  if (message.starts_with(kUnexpected)) {
    const std::string word = message.substr(kUnexpected.size());
    const bool is_option = command.get_option_no_throw("--" + word) != nullptr;
    return fmt::format("{} takes no `{}`{}", command.get_name(), word,
                       is_option ? "; did you mean `--" + word + "`?" : "");
  }
  return message;
}

// Improves two of CLI11's messages: for an unknown subcommand it only says that one is required, and for an unknown
// option it first reports what else is missing.
std::string message_of(const CLI::ParseError& error, const CLI::App& app, int argc, char** argv) {
  if (const std::string message = unknown_subcommand(app, argc, argv); !message.empty()) {
    return message;
  }
  if (app.get_subcommands().empty()) {
    const std::string option = unknown_option(app, argc, argv);
    return option.empty() ? "a subcommand is missing" : unknown_option_text(option, app);
  }
  const CLI::App& called = *app.get_subcommands().front();
  if (argv[1][0] == '-') {
    return fmt::format("{} stands before the subcommand; options stand behind it: {} {} ...", argv[1], app.get_name(),
                       called.get_name());
  }
  const std::vector<std::string> inner = subcommands_of(called);
  if (!inner.empty() && called.get_subcommands().empty()) {
    return fmt::format("{} needs one of {}", called.get_name(), fmt::join(inner, ", "));
  }
  const CLI::App& innermost = inner.empty() ? called : *called.get_subcommands().front();
  const std::string option = unknown_option(innermost, argc, argv);
  if (!option.empty()) {
    return unknown_option_text(option, innermost);
  }
  const std::string message = error.what();
  for (const auto& [name, what] :
       {std::pair("PROBLEM", "a problem"), std::pair("SUBJECT", "a problem, or a module's file,")}) {
    if (message.starts_with(name)) {
      return fmt::format("{} is missing: one argument, in quotes, such as \"{}\"", what, kProblem);
    }
  }
  return plain(message, innermost);
}

// The error for a problem whose words are separate arguments. A subcommand that takes several problems would accept
// them.
std::string unquoted_problem(int argc, char** argv) {
  for (int i = 2; i + 1 < argc; ++i) {
    if (argv[i] == std::string_view("attn") && argv[i + 1][0] != '-') {
      return fmt::format("a problem is one argument, in quotes: {}", in_quotes(argc, argv, i));
    }
  }
  return "";
}

// `flashlift help run`, a form that other programs have, becomes `flashlift run --help`.
std::vector<char*> with_help_behind(const CLI::App& app, std::vector<char*> arguments) {
  static char help[] = "--help";
  if (arguments[1] != std::string_view("help")) {
    return arguments;
  }
  while (arguments.size() > 1 && arguments[1] == std::string_view("help")) {
    arguments.erase(arguments.begin() + 1);
  }
  const CLI::App* asked = &app;
  for (size_t i = 1; i < arguments.size() && asked != nullptr; ++i) {
    const auto inner = asked->get_subcommands([&](const CLI::App* one) { return one->get_name() == arguments[i]; });
    asked = inner.empty() ? nullptr : inner.front();
  }
  if (asked != nullptr) {  // an unknown name gets a message of its own
    arguments.push_back(help);
  }
  return arguments;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Finds attention, compiles it and runs it fused.", "flashlift");
  app.set_version_flag("-V,--version", version());
  app.footer(kFooter);
  app.require_subcommand(1);

  Outcome outcome = kSuccess;
  add_run(app, outcome);
  add_bench(app, outcome);
  add_explain(app, outcome);
  add_draw(app, outcome);
  add_fuse(app, outcome);
  add_compile(app, outcome);
  add_tune(app, outcome);
  add_cache(app, outcome);
  add_info(app, outcome);
  add_completion(app, outcome);

  if (argc <= 1) {
    fmt::print(stderr, "error: a subcommand is missing\n\n{}", app.help());
    return kBadInput;
  }
  std::vector<char*> arguments = with_help_behind(app, {argv, argv + argc});
  argc = static_cast<int>(arguments.size());
  argv = arguments.data();
  if (const std::string message = unquoted_problem(argc, argv); !message.empty()) {
    print_error(message);
    return kBadInput;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version are reported like errors. CLI11 also answers them behind a word that is no subcommand.
    if (error.get_exit_code() == 0 && unknown_subcommand(app, argc, argv).empty()) {
      app.exit(error);
      return kSuccess;
    }
    print_error(
        fmt::format("{}\nRun `{} --help` for its arguments.", message_of(error, app, argc, argv), called_name(app)));
    return kBadInput;
  }
  if (!outcome) {
    print_error(outcome.error());
    return kBadInput;
  }
  return *outcome;
}

// Makes writing to a closed pipe or beyond a limit an error instead of a signal. Also opens any standard stream that
// the caller closed: otherwise a file opened later would get its number, and printed text would go into that file.
void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) {
      // open() returns the lowest free number, which is this one. The mode is the wrong one, so that using the stream
      // is still an error.
      open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

}  // namespace
}  // namespace flashlift::cli

extern "C" __attribute__((visibility("default"))) int flashlift_command_line(int argc, char** argv);

int flashlift_command_line(int argc, char** argv) {
  flashlift::cli::prepare_process();
  int code = 0;
  try {
    code = flashlift::cli::parse_and_run(argc, argv);
  } catch (const std::bad_alloc&) {
    flashlift::cli::print_error("not enough memory; give a smaller problem or module");
    return flashlift::cli::kBadInput;
  } catch (const std::system_error&) {
    // fmt throws this if it cannot write to a stream. If that stream is standard error, the message below is lost, too.
    code = flashlift::cli::kBadInput;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    pollfd output = {STDOUT_FILENO, POLLOUT, 0};
    const bool is_broken_pipe = poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
    flashlift::cli::print_error(is_broken_pipe ? "standard output was closed before all was written"
                                               : "standard output could not be written in full; is the disk full?");
    return flashlift::cli::kBadInput;
  }
  return code;
}
