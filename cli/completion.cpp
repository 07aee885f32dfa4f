// flashlift completion: generates a shell's completions of subcommands and options from the parser's table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "cli/completion.h"

namespace flashlift::cli {
namespace {

// bash's own functions. zsh emulates them in bashcompinit.
constexpr const char* kBash = R"(_flashlift() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{}    *) words="{} --help --version" ;;
  esac
  if [[ $COMP_CWORD == 1 ]]; then
    words="{} --help --version"
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _flashlift flashlift
)";

std::vector<std::string> words_of(const CLI::App& command) {
  std::vector<std::string> names = options_of(command);
  for (const CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(inner->get_name());
  }
  return names;
}

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), fmt::join(words_of(*command), " "));
  }
  const std::string all = fmt::format("{}", fmt::join(commands, " "));
  return fmt::format(kBash, cases, all, all);
}

// One line for each word, with its help.
std::string fish_completion(const CLI::App& app) {
  const auto quoted = [](const std::string& text) {
    std::string out = "'";
    for (const char one : text) {
      out += one == '\'' || one == '\\' ? std::string("\\") + one : std::string(1, one);
    }
    return out + "'";
  };
  std::string text;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += fmt::format("complete -c flashlift -n __fish_use_subcommand -f -a {} -d {}\n", command->get_name(),
                        quoted(command->get_description()));
    const std::string within =
        fmt::format("complete -c flashlift -n '__fish_seen_subcommand_from {}'", command->get_name());
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        text += fmt::format("{} -l {} -d {}\n", within, name, quoted(option->get_description()));
      }
    }
    for (const CLI::App* inner : command->get_subcommands([](const CLI::App*) { return true; })) {
      text += fmt::format("{} -f -a {} -d {}\n", within, inner->get_name(), quoted(inner->get_description()));
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

void add_completion(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("completion", "Print what makes a shell complete subcommands and options");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "In ~/.bashrc:  eval \"$(flashlift completion bash)\"\nIn ~/.zshrc:   eval \"$(flashlift completion zsh)\"\n"
      "For fish:      flashlift completion fish > ~/.config/fish/completions/flashlift.fish");
  command->callback([=, &app, &outcome] {
    if (*shell == "zsh") {
      fmt::print("autoload -U +X bashcompinit && bashcompinit\n");
    }
    fmt::print("{}", *shell == "fish" ? fish_completion(app) : bash_completion(app));
    outcome = kSuccess;
  });
}

}  // namespace flashlift::cli
