#include "stablehlo/split.h"

#include <algorithm>

#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

// The letter of a program's coordinate; '1' for any other value.
char letter_of(const Node& node) {
  switch (node.op) {
    case Op::k_b:
      return 'b';
    case Op::k_h:
      return 'h';
    case Op::k_q:
      return 'q';
    default:  // NOLINT: no other value is a coordinate that differs between devices
      return '1';
  }
}

int64_t size_of(char letter, const Problem& problem) {
  return letter == 'b' ? problem.batch : letter == 'h' ? problem.q_heads : problem.q_len;
}

// Converts a program's batches, heads and queries to numbers in the whole tensor. A device counts its own from 0, which
// is right for indices into its part of a tensor. In all other uses the number of its first one is added, which is read
// from a tensor of one element.
class Counter {
 public:
  Counter(const Problem& problem, const Split& split, const CaptureDims& dims)
      : problem_(problem), split_(split), dims_(dims) {}

  Program in_whole(const Program& program) {
    program_ = &program;
    counted_ = {program.kind, program.captures, {}, 0};
    std::vector<ValueId> ids;
    for (const Node& node : program.nodes) {
      Node copy = node;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const ValueId operand = node.operands[i];
        copy.operands[i] = is_own(node, i) ? ids[operand] : whole(operand, ids);
      }
      counted_.nodes.push_back(std::move(copy));
      ids.push_back(last());
    }
    counted_.result = program.nodes.empty() ? 0 : whole(program.result, ids);
    whole_.clear();
    return counted_;
  }

  std::vector<std::pair<char, std::string>> firsts;

 private:
  ValueId last() const { return static_cast<ValueId>(counted_.nodes.size() - 1); }

  // Whether this operand of a load indexes the device's part of a tensor, or a dimension of size 1.
  bool is_own(const Node& node, size_t operand) const {
    if (node.op != Op::k_load) {
      return false;
    }
    const Capture& capture = program_->captures[static_cast<size_t>(node.payload)];
    return capture.shape[operand] == 1 || dims_.at(capture.name)[operand] != '1';
  }

  ValueId whole(ValueId id, const std::vector<ValueId>& ids) {
    const char letter = letter_of(program_->nodes[id]);
    if (split_.parts(letter) == 1) {
      return ids[id];
    }
    if (const auto known = whole_.find(letter); known != whole_.end()) {
      return known->second;
    }
    const int64_t capture = first(letter);
    counted_.nodes.push_back({Op::k_constant, Type::kI32, {}, 0});
    counted_.nodes.push_back({Op::k_load, Type::kI32, {last()}, capture});
    counted_.nodes.push_back({Op::k_add, Type::kI32, {ids[id], last()}, 0});
    return whole_[letter] = last();
  }

  // The index of the captured tensor with the first number, which both programs share.
  int64_t first(char letter) {
    auto known = std::find_if(firsts.begin(), firsts.end(), [&](const auto& each) { return each.first == letter; });
    if (known == firsts.end()) {
      std::string name = std::string("first_") + letter;
      while (std::any_of(problem_.captures.begin(), problem_.captures.end(),
                         [&](const Capture& each) { return each.name == name; })) {
        name += "_";
      }
      known = firsts.insert(firsts.end(), {letter, name});
    }
    counted_.captures.push_back({known->second, DType::kI32, {1}});
    return static_cast<int64_t>(counted_.captures.size()) - 1;
  }

  const Problem& problem_;
  const Split& split_;
  const CaptureDims& dims_;
  const Program* program_ = nullptr;
  Program counted_;
  std::map<char, ValueId> whole_;
};

void read_loads(const Program& program, const Problem& problem, const Split& split, CaptureDims& dims) {
  for (const Node& node : program.nodes) {
    if (!reads_capture(node.op)) {
      continue;
    }
    const Capture& capture = program.captures[static_cast<size_t>(node.payload)];
    std::string& letters = dims.try_emplace(capture.name, capture.shape.size(), '?').first->second;
    for (size_t i = 0; i < letters.size(); ++i) {
      char letter = node.op == Op::k_load ? letter_of(program.nodes[node.operands[i]]) : '1';
      const bool is_split = split.parts(letter) > 1 && capture.shape[i] == size_of(letter, problem);
      letter = is_split && capture.shape[i] != 1 ? letter : '1';
      letters[i] = letters[i] == '?' || letters[i] == letter ? letter : '1';
    }
  }
}

}  // namespace

int64_t Split::parts(char letter) const { return index_of(letter) < by.size() ? of(letter).parts : 1; }

bool Split::is_none() const {
  return std::all_of(by.begin(), by.end(), [](const SplitBy& each) { return each.parts == 1; });
}

CaptureDims capture_dims(const Problem& problem, const Split& split) {
  CaptureDims dims;
  for (const auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (*program) {
      read_loads(**program, problem, split, dims);
    }
  }
  for (const Capture& capture : problem.captures) {
    std::string& letters = dims.try_emplace(capture.name, capture.shape.size(), '1').first->second;
    for (size_t i = 0; i < letters.size(); ++i) {
      // Only one dimension of a tensor is split for each letter: of bias[b, b], each device has all columns.
      letters[i] = letters[i] == '?' || letters.find(letters[i]) < i ? '1' : letters[i];
    }
  }
  return dims;
}

Result<LocalProblem> local_problem(const Problem& problem, const Split& split) {
  const CaptureDims dims = capture_dims(problem, split);
  Counter counter(problem, split, dims);
  LocalProblem local{problem, {}};
  for (auto* program : {&local.problem.score_mod, &local.problem.mask_mod}) {
    if (!*program) {
      continue;
    }
    const auto reads_length = [](const Node& node) { return node.op == Op::k_q_len; };
    if (split.parts('q') > 1 && std::any_of((*program)->nodes.begin(), (*program)->nodes.end(), reads_length)) {
      return unsupported(
          "its score or mask reads the number of queries, but each device has only a part of the queries");
    }
    **program = counter.in_whole(**program);
    for (Capture& capture : (*program)->captures) {
      const auto letters = dims.find(capture.name);
      for (size_t i = 0; letters != dims.end() && i < capture.shape.size(); ++i) {
        capture.shape[i] /= split.parts(letters->second[i]);
      }
    }
  }
  local.problem.batch /= split.parts('b');
  local.problem.q_heads /= split.parts('h');
  local.problem.kv_heads = problem.kv_heads == 1 ? 1 : problem.kv_heads / split.parts('h');
  local.problem.q_len /= split.parts('q');
  FLASHLIFT_ASSIGN_OR_RETURN(local.problem, parse_problem(print(local.problem)));
  local.firsts = counter.firsts;
  return local;
}

}  // namespace flashlift::stablehlo
