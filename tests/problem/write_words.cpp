// Checks that the texts generated from the tables of words (src/problem) are up to date.
//
//     write_words ROOT            exit code 1, and what to do, if they are not
//     write_words ROOT --write    writes them
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "problem/word_texts.h"

namespace flashlift {
namespace {

// For a cell of a table, where | would end the cell.
std::string quoted(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    list += list.empty() ? "`" : ", `";
    for (const char letter : text) {
      list += letter == '|' ? "\\|" : std::string(1, letter);
    }
    list += '`';
  }
  return list;
}

// Values that are numbers need an example; other values are listed in the word's form.
bool needs_example(const problem::WordText& text) {
  return text.forms.front().ends_with('>') || text.forms.front().ends_with(">]");
}

// The table of one group of words in docs/problem.md.
std::string markdown(std::string_view group) {
  const bool has_defaults = group == "sizes" || group == "options";
  std::string table = fmt::format("| word | meaning | for example |{}\n| --- | --- | --- |{}\n",
                                  has_defaults ? " without it |" : "", has_defaults ? " --- |" : "");
  for (const problem::WordText& text : problem::word_texts()) {
    if (text.group == group) {
      table += fmt::format("| {} | {}{} | {} |", quoted(text.forms), text.doc,
                           text.captures.empty() ? "" : "; captured " + quoted(text.captures),
                           needs_example(text) ? quoted(text.examples) : "");
      table += has_defaults ? fmt::format(" {} |\n", text.without) : "\n";
    }
  }
  return table;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Replaces each table between its two marks.
std::string with_tables(std::string text, bool& all_marked) {
  for (const char* group : {"sizes", "masks", "scores", "options"}) {
    const std::string begin = fmt::format("<!-- {}: make words writes this table -->\n", group);
    const std::string end = "<!-- end -->";
    const size_t from = text.find(begin);
    const size_t to = text.find(end, from);
    if (from == std::string::npos || to == std::string::npos) {
      all_marked = false;
      continue;
    }
    text.replace(from + begin.size(), to - from - begin.size(), markdown(group));
  }
  return text;
}

std::string dictionary() {
  std::string text = "# Words of the problem text, from their tables; tests/problem/write_words.cpp writes them.\n";
  for (const std::string& word : problem::dictionary()) {
    text += fmt::format("\"{}\"\n", word);
  }
  return text;
}

// Returns whether the file holds the text. With `write`, writes the file first.
bool settle(const std::string& path, const std::string& text, bool write) {
  if (read(path) == text) {
    return true;
  }
  if (write) {
    std::ofstream(path) << text;
    fmt::print("wrote {}\n", path);
    return true;
  }
  fmt::print("{} is not what the tables of words in src/problem say; run make words\n", path);
  return false;
}

int run(const std::string& root, bool write) {
  const std::string document = root + "/docs/problem.md";
  bool all_marked = true;
  const std::string text = with_tables(read(document), all_marked);
  if (!all_marked) {
    fmt::print("{} lacks the marks of a table, as `<!-- masks: ... -->` and `<!-- end -->`\n", document);
    return 1;
  }
  const bool settled_document = settle(document, text, write);
  const bool settled_dictionary = settle(root + "/tests/fuzz/problem.dict", dictionary(), write);
  return settled_document && settled_dictionary ? 0 : 1;
}

}  // namespace
}  // namespace flashlift

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: write_words ROOT [--write]\n");
    return 2;
  }
  return flashlift::run(argv[1], argc > 2 && std::string_view(argv[2]) == "--write");
}
