// Any text is either an error or a program whose printed form reads as the same program, and which computes the same
// after it is simplified.
#include <cmath>

#include "fuzz/fuzz.h"
#include "score/canonical.h"
#include "score/interpret.h"
#include "score/simplify.h"
#include "score/verify.h"

namespace flashlift::fuzz {
namespace {

constexpr score::Coordinates kPlaces[] = {
    {.b = 0, .h = 0, .q = 0, .kv = 0, .q_len = 1, .kv_len = 1},
    {.b = 1, .h = 7, .q = 100, .kv = 37, .q_len = 128, .kv_len = 512},
    {.b = 3, .h = 2, .q = 37, .kv = 100, .q_len = 4096, .kv_len = 64},
};
constexpr float kScores[] = {0.0f, -1.5f, 3e30f};

bool same(float x, float y) { return (std::isnan(x) && std::isnan(y)) || x == y; }

void require_same_values(const Program& program, const Program& simplified) {
  score::BasicInterpreter<float> before(program, {});
  score::BasicInterpreter<float> after(simplified, {});
  for (const score::Coordinates& at : kPlaces) {
    if (program.kind == ProgramKind::kMaskMod) {
      require(before.mask_mod(at) == after.mask_mod(at), "simplify keeps a mask", print(program));
      continue;
    }
    for (const float score : kScores) {
      require(same(before.score_mod(score, at), after.score_mod(score, at)), "simplify keeps a score", print(program));
    }
  }
}

void check(std::string_view text) {
  const auto program = parse_program(text);
  if (!program.ok()) {
    require_callers_error(program.error());
    return;
  }
  require(score::verify(*program).ok(), "what was read is well-formed");
  const std::string printed = print(*program);
  const auto again = parse_program(printed);
  require(again.ok() && print(*again) == printed, "the printed form is read back", printed);
  const auto one_line = parse_program(print_one_line(*program));
  require(one_line.ok() && print(*one_line) == printed, "the one-line form is read back", printed);

  const Program simplified = score::simplify(*program);
  require(score::verify(simplified).ok(), "a simplified program is well-formed", print(simplified));
  if (program->captures.empty()) {
    require_same_values(*program, simplified);
  }
  const Program canonical = score::canonicalize(score::SimplifiedProgram(*program));
  require(score::verify(canonical).ok(), "a canonical program is well-formed", print(canonical));
  require(print(score::canonicalize(score::SimplifiedProgram(canonical))) == print(canonical),
          "canonicalize is idempotent", print(canonical));
}

}  // namespace
}  // namespace flashlift::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashlift::fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
