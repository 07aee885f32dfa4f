// The short run of a fuzzer inside the tests, with any compiler: every seed, then changed seeds, the same ones each
// time.
//   NAME_fuzz_test SEED_FOLDER COUNT
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <vector>

#include "support/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace flashlift::fuzz {
namespace {

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

// Removes a piece, repeats a piece, inserts a piece of another seed, or changes a byte.
std::string change(std::string text, const std::string& other, std::mt19937& random) {
  const auto below = [&](size_t bound) { return bound == 0 ? 0 : random() % bound; };
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(text.size());
    const size_t length = 1 + below(24);
    switch (below(4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(below(text.size()), length));
        break;
      case 2:
        text.insert(at, other.substr(below(other.size()), length));
        break;
      default:
        if (!text.empty()) {
          text[at] = static_cast<char>(random());
        }
    }
  }
  return text;
}

int replay(const char* folder, int count) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    auto text = read_file(path);
    if (!text.ok()) {
      std::fprintf(stderr, "%s\n", text.error().message.c_str());
      return 1;
    }
    seeds.push_back(*std::move(text));
    run(seeds.back());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds in %s\n", folder);
    return 1;
  }
  std::mt19937 random(1);
  for (int i = 0; i < count; ++i) {
    run(change(seeds[random() % seeds.size()], seeds[random() % seeds.size()], random));
  }
  std::printf("%zu seeds and %d changed ones: no finding\n", seeds.size(), count);
  return 0;
}

}  // namespace
}  // namespace flashlift::fuzz

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SEED_FOLDER COUNT\n", argv[0]);
    return 2;
  }
  return flashlift::fuzz::replay(argv[1], std::atoi(argv[2]));
}
