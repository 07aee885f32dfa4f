// Named features: words of the problem text that become score and mask programs. A backend sees programs only.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "flashlift/builder.h"
#include "flashlift/problem.h"
#include "problem/words.h"

namespace flashlift::problem {

// What a captured tensor of a feature holds, for whoever draws one at random.
enum class Holds : uint8_t {
  kAnything,
  kQueryStarts,  // rising from 0 to at most the number of queries
  kKeyStarts,    // rising from 0 to at most the number of keys
  kKeyCounts,    // 0 to the number of keys
  kIds,          // a few different numbers
};

// A captured tensor of a feature: its sizes are numbers or kBatchSize and the like; 0 stands behind the last one.
struct FeatureTensor {
  const char* name = nullptr;
  std::optional<DType> dtype = std::nullopt;  // none: the one that is the word's value
  std::array<int64_t, 4> shape{};
  Holds holds = Holds::kAnything;
};

// How often random problems have the word, and which values that are numbers. Choices are drawn alike.
struct Drawn {
  int once_in;
  int64_t low = 0;
  int64_t high = 0;
  bool in_16_bits_only = false;  // only where q, k and v are of 16 bits
};

// Where a score stands.
struct Place {
  const Problem& problem;
  Expr b, h, q, kv;
  // The key on the diagonal that goes through the query's row: the last one that `causal` keeps. From the corner, or
  // within the packed sequence, that `causal` and `causal=bottom_right` say.
  Expr diagonal;
  Expr top_left;   // the same from the top left corner, whatever `causal` says
  Expr first_key;  // of the query's packed sequence
  Expr key_end;    // where its keys end
};

struct GivenFeature;

struct Feature {
  Word word;
  // One of these. A key is kept if all masks keep it; the scores follow each other in the order of the table.
  Expr (*mask)(const Place& at, const GivenFeature& given) = nullptr;
  Expr (*score)(const Place& at, Expr score, const GivenFeature& given) = nullptr;
  bool overrules = false;  // what this mask keeps is kept whatever the masks before it in the table say
  std::array<FeatureTensor, 2> tensors{};
  const char* not_with = nullptr;  // another word, and why they do not go together
  const char* not_with_because = nullptr;
  Drawn drawn;
};

std::span<const Feature> features();

// The captured tensor of a feature that is declared like this one; null if there is none.
const FeatureTensor* feature_tensor(const Capture& capture);

// A feature that a problem has.
struct GivenFeature {
  const Feature* row;
  Given value;

  // A captured tensor of the row.
  Captured tensor(std::string_view name) const;
};

class GivenFeatures {
 public:
  // Errors: the word does not take the value.
  Status add(const Feature& row, std::string_view value);
  const GivenFeature* find(std::string_view word) const;        // null if it is not given
  std::span<const GivenFeature> all() const { return given_; }  // in the order of the table
  // Errors: two that do not go together.
  Status verify() const;

  // Composes the features with the programs that the problem already has: score features first, then the problem's own
  // score_mod; all masks must keep a key. Fills Problem::captures.
  Status apply(Problem& problem) const;

 private:
  Result<Program> score_program(const Problem& problem) const;
  Result<Program> mask_program(const Problem& problem) const;

  std::vector<GivenFeature> given_;
};

}  // namespace flashlift::problem
