// Named features: words of the problem text that become score and mask programs. Backends only see the programs.
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

// The kind of contents of a feature's captured tensor, for drawing random ones.
enum class Holds : uint8_t {
  kAnything,
  kQueryStarts,  // rising from 0 to at most the number of queries
  kKeyStarts,    // rising from 0 to at most the number of keys
  kKeyCounts,    // 0 to the number of keys
  kIds,          // a few different numbers
};

// A captured tensor of a feature. Its sizes are numbers or such as kBatchSize; 0 marks the end.
struct FeatureTensor {
  const char* name = nullptr;
  std::optional<DType> dtype = std::nullopt;  // nothing: the dtype is the word's value
  std::array<int64_t, 4> shape{};
  Holds holds = Holds::kAnything;
};

// How often random problems have the word, and with which numbers. Choices are drawn uniformly.
struct Drawn {
  int once_in;
  int64_t low = 0;
  int64_t high = 0;
  bool in_16_bits_only = false;  // only if q, k and v are 16-bit
};

// The position of a score.
struct Place {
  const Problem& problem;
  Expr b, h, q, kv;
  // The key on the diagonal through the query's row, which is the last one that `causal` keeps. It is counted from the
  // corner, or within the packed sequence, that `causal` or `causal=bottom_right` selects.
  Expr diagonal;
  Expr top_left;   // the same from the top left corner, for any `causal`
  Expr first_key;  // of the query's packed sequence
  Expr key_end;    // the end of its keys
};

struct GivenFeature;

struct Feature {
  Word word;
  // One of these is set. A key is kept if all masks keep it; score functions are applied in the order of the table.
  Expr (*mask)(const Place& at, const GivenFeature& given) = nullptr;
  Expr (*score)(const Place& at, Expr score, const GivenFeature& given) = nullptr;
  bool overrules = false;  // keys that this mask keeps are kept even if masks before it in the table remove them
  std::array<FeatureTensor, 2> tensors{};
  const char* not_with = nullptr;  // a word that excludes this one, and the reason
  const char* not_with_because = nullptr;
  Drawn drawn;
};

std::span<const Feature> features();

// The captured tensor of a feature with this declaration; null if there is none.
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
  // Fails if the word does not accept the value.
  Status add(const Feature& row, std::string_view value);
  const GivenFeature* find(std::string_view word) const;        // null if it is not given
  std::span<const GivenFeature> all() const { return given_; }  // in the order of the table
  // Fails if two features exclude each other.
  Status verify() const;

  // Composes the features with the programs that the problem already has: score features come before the problem's own
  // score_mod, and a key must be kept by all masks. Sets Problem::captures.
  Status apply(Problem& problem) const;

 private:
  Result<Program> score_program(const Problem& problem) const;
  Result<Program> mask_program(const Problem& problem) const;

  std::vector<GivenFeature> given_;
};

}  // namespace flashlift::problem
