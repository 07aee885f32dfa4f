// flashlift completion: generates a shell's completions of subcommands and options from the parser's table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/completion.h"

namespace flashlift::cli {
namespace {

// bash's own functions. zsh emulates them in bashcompinit. bash splits `--device=cpu` into three words.
constexpr const char* kBash = R"(_flashlift() {{
  local at="${{COMP_WORDS[1]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words
  if [[ $COMP_CWORD == 1 ]]; then
    at=""
  elif [[ $COMP_CWORD -gt 2 ]]; then
    at+=" ${{COMP_WORDS[2]}}"
  fi
  if [[ "$before" == "=" ]]; then
    before="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  case "$at " in
{}    *) words="{} --help --version" ;;
  esac
  case "$before" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _flashlift flashlift
)";

constexpr const char* kZsh = R"((( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
autoload -Uz bashcompinit && bashcompinit
)";

std::vector<const CLI::App*> subcommands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

// The words of one_of(), which CLI11 keeps in the description of the option's type.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t first = type.find('{');
  const size_t last = type.find('}', first);
  return last == std::string::npos ? std::vector<std::string>()
                                   : CLI::detail::split(type.substr(first + 1, last - first - 1), ',');
}

std::vector<std::string> words_of(const CLI::App& command) {
  std::vector<std::string> words = options_of(command);
  for (const CLI::App* inner : subcommands_of(command)) {
    words.push_back(inner->get_name());
  }
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) {
      const std::vector<std::string> values = values_of(*option);
      words.insert(words.end(), values.begin(), values.end());
    }
  }
  return words;
}

// A case for each command. That of `cache list` comes before that of `cache`.
std::string bash_cases(const CLI::App& command, const std::string& name, std::map<std::string, std::string>& values) {
  std::string cases;
  for (const CLI::App* inner : subcommands_of(command)) {
    cases += bash_cases(*inner, name + inner->get_name() + " ", values);
  }
  if (name.empty()) {
    return cases;
  }
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& one : option->get_lnames()) {
      if (const std::vector<std::string> known = values_of(*option); !known.empty()) {
        values[one] = fmt::format("    --{}) words=\"{}\" ;;\n", one, fmt::join(known, " "));
      }
    }
  }
  return cases + fmt::format("    \"{}\"*) words=\"{}\" ;;\n", name, fmt::join(words_of(command), " "));
}

std::string bash_completion(const CLI::App& app) {
  std::map<std::string, std::string> values;
  const std::string cases = bash_cases(app, "", values);
  std::string of_options;
  for (const auto& [option, line] : values) {
    of_options += line;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : subcommands_of(app)) {
    names.push_back(command->get_name());
  }
  return fmt::format(kBash, cases, fmt::join(names, " "), of_options);
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char one : text) {
    out += one == '\'' || one == '\\' ? std::string("\\") + one : std::string(1, one);
  }
  return out + "'";
}

// One line for each word, with its help. seen: the condition for a command's options.
std::string fish_words(const CLI::App& command, const std::string& seen) {
  const std::string within = fmt::format("complete -c flashlift -n {}", quoted(seen));
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> values = values_of(*option);
    const std::string given =
        values.empty() ? "" : fmt::format(" -x -a {}", quoted(fmt::format("{}", fmt::join(values, " "))));
    for (const std::string& name : option->get_lnames()) {
      text += fmt::format("{} -l {}{} -d {}\n", within, name, given, quoted(option->get_description()));
    }
    if (option->get_positional() && !values.empty()) {
      text += fmt::format("{} -f{} -d {}\n", within, given.substr(3), quoted(option->get_description()));
    }
  }
  for (const CLI::App* inner : subcommands_of(command)) {
    text += fmt::format("{} -f -a {} -d {}\n", within, inner->get_name(), quoted(inner->get_description()));
    text += fish_words(*inner, seen + "; and __fish_seen_subcommand_from " + inner->get_name());
  }
  return text;
}

std::string fish_completion(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : subcommands_of(app)) {
    text += fmt::format("complete -c flashlift -n __fish_use_subcommand -f -a {} -d {}\n", command->get_name(),
                        quoted(command->get_description()));
    text += fish_words(*command, "__fish_seen_subcommand_from " + command->get_name());
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

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string listed = fmt::format("{{{}}}", fmt::join(words, ","));
  return {[words = std::move(words)](std::string& text) {
            return std::ranges::find(words, text) != words.end()
                       ? std::string()
                       : fmt::format("expected {}, got {}", fmt::join(words, " or "), text);
          },
          listed};
}

void add_completion(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("completion", "Print what makes a shell complete subcommands and options");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(one_of({"bash", "zsh", "fish"}));
  command->footer(
      "In ~/.bashrc:  eval \"$(flashlift completion bash)\"\nIn ~/.zshrc:   eval \"$(flashlift completion zsh)\"\n"
      "For fish:      flashlift completion fish > ~/.config/fish/completions/flashlift.fish");
  command->callback([=, &app, &outcome] {
    if (*shell == "zsh") {
      fmt::print(kZsh);
    }
    fmt::print("{}", *shell == "fish" ? fish_completion(app) : bash_completion(app));
    outcome = kSuccess;
  });
}

}  // namespace flashlift::cli
