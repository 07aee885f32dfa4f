#include "cuda/emit/program_emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "cuda/emit/capture_loads.h"
#include "cuda/emit/conditions.h"
#include "cuda/emit/statements.h"
#include "cuda/kernels/common/forward_params.h"
#include "problem/differentiate.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

// Whether the program loads an element whose index depends on the key.
bool loads_by_key(const std::optional<Program>& program) {
  if (!program) {
    return false;
  }
  const Motion motion(*program);
  for (size_t i = 0; i < program->nodes.size(); ++i) {
    if (reads_capture(program->nodes[i].op) && motion.kv[i]) {
      return true;
    }
  }
  return false;
}

// Whether a score_mod may return -inf in a whole tile, because of a constant or of what it loads. Otherwise it is not
// worth evaluating its intervals.
bool masks(const std::optional<Program>& score_mod) {
  if (!score_mod) {
    return false;
  }
  const Motion motion(*score_mod);
  return std::ranges::any_of(score_mod->nodes, [&](const Node& node) {
    const bool lowest = node.op == Op::k_constant && node.type == Type::kF32 &&
                        std::bit_cast<float>(static_cast<uint32_t>(node.payload)) == -INFINITY;
    return lowest || is_mask_load(*score_mod, motion, node);
  });
}

bool depends_on_head(const std::optional<Program>& program) { return program && Motion(*program).h[program->result]; }

}  // namespace

bool finds_visits(const Problem& problem) { return problem.mask_mod || masks(problem.score_mod); }

bool visits_differ_by_head(const Problem& problem) {
  return depends_on_head(problem.mask_mod) || (masks(problem.score_mod) && depends_on_head(problem.score_mod));
}

namespace {

void add_bounded_captures(const Problem& problem, const Program& program, std::vector<BoundedCapture>& bounded) {
  const Motion motion(program);
  const auto moves = [&](ValueId id) { return motion.q[id] || motion.kv[id]; };
  for (const Node& node : program.nodes) {
    if (node.op != Op::k_load || node.operands.empty() || !moves(node.operands.back())) {
      continue;
    }
    const bool bias = node.type == Type::kF32 && program.kind == ProgramKind::kScoreMod;
    if (bias && !is_mask_load(program, motion, node)) {
      continue;
    }
    const Capture& capture = program.captures[static_cast<size_t>(node.payload)];
    const auto at = std::find(problem.captures.begin(), problem.captures.end(), capture);
    const auto index = static_cast<size_t>(at - problem.captures.begin());
    const bool several_rows = node.operands.size() > 1 && moves(node.operands[node.operands.size() - 2]);
    const int rows = several_rows ? kCaptureRows : 1;
    const auto known =
        std::find_if(bounded.begin(), bounded.end(), [&](const BoundedCapture& other) { return other.index == index; });
    if (known == bounded.end()) {
      bounded.push_back({index, rows});
    } else {
      known->rows = std::min(known->rows, rows);
    }
  }
}

constexpr const char* kFunction = "__device__ __forceinline__";

// Names in which the two kinds of program differ.
struct Names {
  const char* function;  // score_mod
  const char* prefix;    // score
  const char* type;      // Score
  const char* upper;     // SCORE
  const char* result;    // float
  const char* before;    // parameters before the position
  const char* begin;     // first statements
};
constexpr Names kScoreNames = {
    "score_mod", "score", "Score", "SCORE", "float", "float raw, ", "  const float score = raw * params.scale;\n"};
constexpr Names kGradientNames = {"score_gradient", "gradient", "Gradient", "GRADIENT", "float", "float raw, ", ""};
constexpr Names kMaskNames = {"mask_mod", "mask", "Mask", "MASK", "bool", "", ""};
constexpr Names kPlainMaskNames = {"plain_mask_mod", "plain_mask", "PlainMask", "PLAIN_MASK", "bool", "", ""};

std::string emit_struct(const Program& program, const Names& names, const char* suffix,
                        const std::vector<size_t>& nodes) {
  std::string text = fmt::format("struct {}{} {{", names.type, suffix);
  for (const size_t i : nodes) {
    text += fmt::format(" {} v{};", type_name(program.nodes[i].type), i);
  }
  return text + " };\n";
}

// Emits <name>Row, <name>Column and the functions that compute them. They contain the results of the program's searches
// that depend on the query or the key alone. These are loops, and no compiler moves their copies out of a tile's loops.
// Two columns agree if all searches have the same results for both keys, and therefore for the keys between them.
std::string emit_searches(const Problem& problem, const Program& program, const Names& names) {
  Emitter rows(problem, program, Part::kRow);
  Emitter columns(problem, program, Part::kColumn);
  std::string text = emit_struct(program, names, "Row", rows.given());
  text += emit_struct(program, names, "Column", columns.given());
  text += fmt::format("{} {}Row {}_row(int b, int h, int q, const ForwardParams& params) {{\n{}}}\n", kFunction,
                      names.type, names.prefix, rows.given_body());
  text += fmt::format("{} {}Column {}_column(int b, int kv, const ForwardParams& params) {{\n{}}}\n", kFunction,
                      names.type, names.prefix, columns.given_body());
  text +=
      fmt::format("{0} bool agree(const {1}Column& x, const {1}Column& y) {{\n  return true", kFunction, names.type);
  for (const size_t i : columns.given()) {
    text += fmt::format(" && x.v{0} == y.v{0}", i);
  }
  return text + fmt::format(";\n}}\n#define FL_{}_COLUMNS {:d}\n\n", names.upper, !columns.given().empty());
}

// Emits <name>OfQuery and <name>OfKey (the elements of captured tensors that the program reads for a query or for a key
// alone), the functions that compute them or copy them from another lane, and the program that uses them.
std::string emit_values(const Problem& problem, const Program& program, const Names& names) {
  Emitter of_query(problem, program, Part::kOfQuery);
  Emitter of_key(problem, program, Part::kOfKey);
  std::string text;
  const auto add = [&](Emitter& emitter, const char* suffix, const char* function, const char* position) {
    const std::vector<size_t> nodes = emitter.given();
    text += emit_struct(program, names, suffix, nodes);
    text += fmt::format("{0} {1}{2} {3}_{4}({5}, const ForwardParams& params) {{\n{6}}}\n", kFunction, names.type,
                        suffix, names.prefix, function, position, emitter.given_body());
    text +=
        fmt::format("{0} {1}{2} from_lane(const {1}{2}& x, int lane) {{\n  return {{", kFunction, names.type, suffix);
    for (const size_t i : nodes) {
      const std::string value = fmt::format("x.v{}", i);
      text += program.nodes[i].type == Type::kI1
                  ? fmt::format("__shfl_sync(0xffffffff, static_cast<int>({}), lane) != 0, ", value)
                  : fmt::format("__shfl_sync(0xffffffff, {}, lane), ", value);
    }
    text += "};\n}\n";
  };
  add(of_query, "OfQuery", "of_query", "int b, int h, int q");
  add(of_key, "OfKey", "of_key", "int b, int kv");
  text += fmt::format(
      "{0} bool {1}_of_values(const {2}OfQuery& of_query, const {2}OfKey& of_key, int b, int h, int q, int kv_first, "
      "int key, const ForwardParams& params) {{\n  const int kv = kv_first + key;\n",
      kFunction, names.function, names.type);
  return text + Emitter(problem, program, Part::kOfValues).body() + "}\n\n";
}

// Statements that compute the first and the last query that see a key, if the mask_mod can be expressed so.
std::optional<std::string> range_statements(const Program& mask_mod) {
  const std::optional<std::vector<QueryBound>> bounds = query_bounds(mask_mod);
  if (!bounds) {
    return std::nullopt;
  }
  std::string text;
  for (const QueryBound& bound : *bounds) {
    const std::string value = fmt::format("{} * kv + {}", bound.kv, bound.constant);
    switch (bound.kind) {
      case QueryBound::Kind::kFirst:
        text += fmt::format("    first = max(first, {});\n", value);
        break;
      case QueryBound::Kind::kLast:
        text += fmt::format("    last = min(last, {});\n", value);
        break;
      case QueryBound::Kind::kAny:
        text += fmt::format("    last = {} <= 0 ? last : -1;\n", value);
        break;
    }
  }
  return text;
}

// Emits <name>Mod, which contains everything that is needed to apply the program to a tile (kernels/common/mods.cuh).
// Its members have the same names for both kinds of program.
std::string emit_mod(const Names& names, bool straight) {
  const char* raw = *names.before != '\0' ? "raw, " : "";
  std::string text = fmt::format(
      "struct {0}Mod {{\n"
      "  static constexpr bool kColumns = FL_{1}_COLUMNS;\n"
      "  static constexpr bool kStraightLoads = FL_{1}_STRAIGHT_LOADS;\n"
      "  using Row = {0}Row;\n"
      "  using Column = {0}Column;\n",
      names.type, names.upper);
  const auto add = [&](const std::string& declaration, const std::string& result) {
    text += fmt::format("  static {} {}const ForwardParams& params) {{\n    return {};\n  }}\n", kFunction, declaration,
                        result);
  };
  add("Column column(int b, int kv, ", fmt::format("{}_column(b, kv, params)", names.prefix));
  add("bool loads_inside(int b, int h, int q, int kv_first, int last_key, ",
      straight ? fmt::format("{}_loads_inside(b, h, q, kv_first, last_key, params)", names.prefix) : "true");
  const std::string scored =
      fmt::format("{} value(float raw, const Row& row, const Column& column, int b, int h, ", names.result);
  add(scored + "int q, int kv_first, int key, ",
      fmt::format("{}({}row, column, b, h, q, kv_first, key, params)", names.function, raw));
  add(scored + "int q_first, int row_offset, int kv_first, int key, ",
      straight
          ? fmt::format("{}_inside({}row, column, b, h, q_first, row_offset, kv_first, key, params)", names.function,
                        raw)
          : fmt::format("{}({}row, column, b, h, q_first + row_offset, kv_first, key, params)", names.function, raw));
  return text + "};\n\n";
}

// Emits <name>Tile, for the backward kernels: the mask of a tile whose rows or columns are keys.
std::string emit_mask_tile(const Program& program, const Names& names) {
  const std::optional<std::string> range = range_statements(program);
  std::string text = fmt::format(
      "struct {0}Tile {{\n"
      "  using OfQuery = {0}OfQuery;\n"
      "  using OfKey = {0}OfKey;\n"
      "  static constexpr bool kRange = {1};\n",
      names.type, range.has_value());
  if (range) {
    text +=
        fmt::format("  static {} QueryRange queries_of(int kv) {{\n    int first = 0;\n    int last = kLastQuery;\n{}",
                    kFunction, *range);
    text += "    return {first, last};\n  }\n";
  }
  const auto add = [&](const char* declaration, const char* result) {
    text += fmt::format("  static {} {}, const ForwardParams& params) {{\n    return {}_{};\n  }}\n", kFunction,
                        declaration, names.prefix, result);
  };
  add("OfQuery of_query(int b, int h, int q", "of_query(b, h, q, params)");
  add("OfKey of_key(int b, int kv", "of_key(b, kv, params)");
  text += fmt::format(
      "  static {} bool value(const OfQuery& of_query, const OfKey& of_key, int b, int h, int q, int kv, const "
      "ForwardParams& params) {{\n    return {}_of_values(of_query, of_key, b, h, q, kv, 0, params);\n  }}\n",
      kFunction, names.function);
  return text + "};\n\n";
}

// Emits a program and all functions that the kernels need, except its intervals.
std::string emit_program(const Problem& problem, const Program& program, const Names& names) {
  const auto head = [&](const char* suffix, const char* query) {
    return fmt::format(
        "{} {} {}{}({}const {}Row& row, const {}Column& column, int b, int h, {}, int kv_first, int key, "
        "const ForwardParams& params) {{\n{}  const int kv = kv_first + key;\n",
        kFunction, names.result, names.function, suffix, names.before, names.type, names.type, query, names.begin);
  };
  std::string text = emit_searches(problem, program, names);
  text += head("", "int q") + Emitter(problem, program, Part::kWhole).body() + "}\n\n";
  const bool straight = !Emitter(problem, program, Part::kWhole).nodes_that(&Emitter::is_straight_load).empty();
  text += fmt::format("#define FL_{}_STRAIGHT_LOADS {:d}\n", names.upper, straight);
  if (straight) {
    text += head("_inside", "int q_first, int row_offset") + "  const int q = q_first + row_offset;\n";
    text += Emitter(problem, program, Part::kInside).body() + "}\n\n";
    text += fmt::format(
        "{} bool {}_loads_inside(int b, int h, int q, int kv_first, int last_key, const ForwardParams& params) {{\n",
        kFunction, names.prefix);
    text += Emitter(problem, program, Part::kRow).bounds_check() + "}\n\n";
  }
  const bool zeros = program.kind == ProgramKind::kScoreMod && adds_masks_only(program);
  if (zeros) {
    text += head("_of_zeros", "int q") + Emitter(problem, program, Part::kZeros).body() + "}\n\n";
  }
  text += fmt::format("#define FL_{}_ZEROS {:d}\n", names.upper, zeros) + emit_mod(names, straight);
  if (program.kind == ProgramKind::kMaskMod) {
    text += emit_values(problem, program, names) + emit_mask_tile(program, names);
  }
  return text;
}

bool is_one(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  return node.op == Op::k_constant && node.type == Type::kF32 &&
         std::bit_cast<float>(static_cast<uint32_t>(node.payload)) == 1.0f;
}

// A block's tables, and the kernel's argument that gives their shapes.
std::string emit_tables(int count) {
  std::string members;
  std::string initial;
  std::string clear;
  for (int i = 0; i < count; ++i) {
    members += fmt::format("  BlockSums table{};\n", i);
    initial += fmt::format("{}table{}(shapes.of[{}], memory + {} * FL_TABLE_BYTES)", i == 0 ? " : " : ", ", i, i, i);
    clear += fmt::format("    table{}.clear(thread, threads);\n", i);
  }
  return fmt::format(
      "struct ElementTables {{ ElementTable of[{0}]; }};\n"
      "struct BlockTables {{\n"
      "  {1} BlockTables(const ElementTables& shapes, u32 memory){2} {{}}\n"
      "  {1} void clear(int thread, int threads) const {{\n{3}  }}\n{4}  GlobalSums none;\n}};\n\n",
      std::max(count, 1), kFunction, initial, clear, members);
}

// What the kernels of captured tensors' gradients call.
std::string emit_capture_gradients(const Problem& problem, const score::Derivative& derivative,
                                   const std::vector<CaptureLoad>& loads) {
  const Program& body = derivative.body;
  const auto whole = [&] { return Emitter(problem, body, Part::kWhole); };
  const std::string at =
      "float raw, const GradientRow& row, const GradientColumn& column, int b, int h, int q, int kv_first, int key, "
      "const ForwardParams& params";
  const std::string begin = "  const float score = raw * params.scale;\n  const int kv = kv_first + key;\n";
  // Of an element's indices, which no score changes.
  const std::string place =
      "int b, int h, int q, int kv, const ForwardParams& params, const CaptureGradient* gradients";
  const std::string begin_place =
      "  const GradientRow row = gradient_row(b, h, q, params);\n"
      "  const GradientColumn column = gradient_column(b, kv, params);\n"
      "  const float raw = 0.0f;\n  const float score = 0.0f;\n  const int kv_first = kv;\n  const int key = 0;\n";
  std::string text = emit_tables(element_tables(loads)) + "struct GradientSums {\n";
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].sum == CaptureSum::kRow || loads[i].sum == CaptureSum::kKey) {
      text += fmt::format("  float load{}[2];\n", i);
    } else if (loads[i].sum == CaptureSum::kElement) {
      text += fmt::format("  ElementSum element{}[2];\n", i);
    }
  }
  text += fmt::format("}};\n{} void add_captured_key(float ds, {}, GradientSums& sums, int r) {{\n{}{}}}\n\n",
                      kFunction, at, begin, whole().captured_key_body(derivative, loads));
  text += fmt::format("{} void add_captured_keys(const GradientSums& sums, int r, bool inside, {}) {{\n{}{}}}\n\n",
                      kFunction, place, begin_place, whole().captured_sums_body(derivative, loads, CaptureSum::kKey));
  text += fmt::format(
      "{} float add_captured(float ds, {}, const CaptureGradient* gradients, GradientSums& sums, BlockTables& tables, "
      "int r) {{\n{}{}}}\n\n",
      kFunction, at, begin, whole().captured_body(derivative, loads));
  text += fmt::format(
      "{} void add_captured_rows(const GradientSums& sums, int r, int b, int h, int q, bool inside, const "
      "ForwardParams& params, const CaptureGradient* gradients) {{\n{}}}\n\n",
      kFunction, Emitter(problem, body, Part::kRow).captured_sums_body(derivative, loads, CaptureSum::kRow));
  text += fmt::format("{} void add_captured_elements(GradientSums& sums, BlockTables& tables, {}) {{\n{}{}}}\n\n",
                      kFunction, place, begin_place, whole().flush_body(derivative, loads, CaptureSum::kElement));
  text +=
      fmt::format("{} void add_captured_tables(const BlockTables& tables, int thread, int threads, {}) {{\n{}{}}}\n\n",
                  kFunction, place, begin_place, whole().tables_body(derivative, loads));
  text += fmt::format("{} void add_diagonal(float sum, ElementSum& element, {}) {{\n{}{}}}\n\n", kFunction, place,
                      begin_place, whole().diagonal_body(derivative, loads));
  text += fmt::format("{} void finish_diagonals(ElementSum& element, {}) {{\n{}{}}}\n\n", kFunction, place, begin_place,
                      whole().flush_body(derivative, loads, CaptureSum::kDiagonal));
  text += fmt::format("{} float plane_gradient(int load, float ds, {}) {{\n{}{}}}\n\n", kFunction, at, begin,
                      whole().plane_body(derivative, loads));
  text += fmt::format("{} void store_plane(int load, float value, {}) {{\n{}{}}}\n\n", kFunction, place, begin_place,
                      whole().store_plane_body(derivative, loads));
  return text;
}

}  // namespace

std::vector<BoundedCapture> bounded_captures(const Problem& problem) {
  std::vector<BoundedCapture> bounded;
  if (problem.mask_mod) {
    add_bounded_captures(problem, *problem.mask_mod, bounded);
  }
  if (masks(problem.score_mod)) {
    add_bounded_captures(problem, *problem.score_mod, bounded);
  }
  return bounded;
}

std::string emit_gradient(const Problem& problem, const std::vector<bool>& wants_gradient) {
  const std::optional<score::Derivative> derivative = problem::differentiate(problem, wants_gradient);
  const std::vector<CaptureLoad> loads = derivative ? capture_loads(problem, *derivative) : std::vector<CaptureLoad>();
  const auto count = [&](auto&& holds) { return std::ranges::count_if(loads, holds, &CaptureLoad::sum); };
  const auto planes = count([](CaptureSum sum) { return sum == CaptureSum::kPlane; });
  const auto diagonals = count([](CaptureSum sum) { return sum == CaptureSum::kDiagonal; });
  const auto keys = count([](CaptureSum sum) { return sum == CaptureSum::kKey; });
  std::string text =
      "#pragma once\n#include \"cuda/kernels/common/capture_gradients.cuh\"\n#include \"program.cuh\"\n\n";
  const auto searches = [](const Program& program) {
    return std::ranges::any_of(program.nodes, [](const Node& node) { return node.op == Op::k_search; });
  };
  text += fmt::format("#define FL_MASK_LOADS {:d}\n", loads_by_key(problem.mask_mod));
  text += fmt::format("#define FL_MASK_SEARCHES {:d}\n", problem.mask_mod && searches(*problem.mask_mod));
  text += fmt::format("#define FL_GRADIENT_SEARCHES {:d}\n", derivative && searches(derivative->body));
  text += fmt::format("#define FL_HAS_DERIVATIVE {:d}\n", derivative && !is_one(derivative->body, derivative->d_score));
  text += fmt::format("#define FL_DERIVATIVE_SELECTS {:d}\n", derivative && derivative->selects);
  text += fmt::format("#define FL_PLANE_GRADIENTS {:d}\n", planes > 0);
  text += fmt::format("#define FL_DIAGONAL_GRADIENTS {:d}\n", diagonals > 0);
  text += fmt::format("#define FL_KEY_GRADIENTS {:d}\n", keys > 0);
  text += fmt::format("#define FL_QUERY_GRADIENTS {:d}\n\n", std::ssize(loads) > planes + keys);
  text += "namespace flashlift::cuda {\n\n";
  const std::string at =
      "const GradientRow& row, const GradientColumn& column, int b, int h, int q, int kv_first, int "
      "key, const ForwardParams& params";
  const std::string head = fmt::format("{} float score_gradient(float raw, {}, float& derivative) {{\n", kFunction, at);
  if (!derivative) {
    text += fmt::format(
        "struct GradientRow {{}};\nstruct GradientColumn {{}};\n"
        "{0} GradientRow gradient_row(int, int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{0} GradientColumn gradient_column(int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{1}  derivative = 1.0f;\n  return raw * params.scale;\n}}\n\n",
        kFunction, head);
    return text + "}  // namespace flashlift::cuda\n";
  }
  const Program& body = derivative->body;
  const std::string begin = "  const float score = raw * params.scale;\n  const int kv = kv_first + key;\n";
  text += emit_searches(problem, body, kGradientNames);
  text += head + begin + Emitter(problem, body, Part::kWhole).derivative_body(derivative->d_score) + "}\n\n";
  if (!loads.empty()) {
    text += emit_capture_gradients(problem, *derivative, loads);
  }
  return text + "}  // namespace flashlift::cuda\n";
}

std::string emit_programs(const Problem& problem) {
  std::string text = "#pragma once\n#include \"cuda/kernels/common/interval.cuh\"\n\n";
  text += "namespace flashlift::cuda {\n\n";
  if (problem.score_mod) {
    text += fmt::format("#define FL_SCORE_FACTOR {}\n\n", float_text(last_factor(problem, *problem.score_mod).factor));
    text += emit_program(problem, *problem.score_mod, kScoreNames);
  } else {  // for a scale that the softmax cannot apply
    text += fmt::format(
        "#define FL_SCORE_FACTOR 1.0f\n#define FL_SCORE_COLUMNS 0\n#define FL_SCORE_STRAIGHT_LOADS 0\n"
        "#define FL_SCORE_ZEROS 0\n"
        "struct ScoreRow {{}};\nstruct ScoreColumn {{}};\n"
        "{0} ScoreRow score_row(int, int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{0} ScoreColumn score_column(int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{0} float score_mod(float raw, const ScoreRow&, const ScoreColumn&, int, int, int, int, int, const "
        "ForwardParams& "
        "params) {{ return raw * params.scale; }}\n\n",
        kFunction);
    text += emit_mod(kScoreNames, false);
  }
  const char* tile_parameters =
      "int b, int h_first, int h_last, int q_first, int q_last, int kv_first, int kv_last, const ForwardParams& params";
  text += fmt::format("#define FL_SCORE_LOADS {:d}\n", loads_by_key(problem.score_mod));
  text += fmt::format("#define FL_SCORE_MASKS {:d}\n\n", masks(problem.score_mod));
  if (masks(problem.score_mod)) {
    text += fmt::format("{} ScoreTile score_tile({}) {{\n", kFunction, tile_parameters);
    text += Emitter(problem, *problem.score_mod, Part::kInterval).body() + "}\n\n";
  }
  if (problem.mask_mod) {
    text += emit_program(problem, *problem.mask_mod, kMaskNames);
    text += fmt::format("{} int mask_interval({}) {{\n", kFunction, tile_parameters);
    text += Emitter(problem, *problem.mask_mod, Part::kInterval).body() + "}\n\n";
  }
  const bool has_plain_mask = problem.mask_mod && !loading_conditions(*problem.mask_mod).empty();
  text += fmt::format("#define FL_HAS_PLAIN_MASK {:d}\n\n", has_plain_mask);
  if (has_plain_mask) {
    const Program plain = without_loading_conditions(*problem.mask_mod);
    text += emit_program(problem, plain, kPlainMaskNames);
    text += fmt::format("{} int plain_mask_interval({}) {{\n", kFunction, tile_parameters);
    text += Emitter(problem, plain, Part::kInterval).body() + "}\n\n";
  }
  return text + "}  // namespace flashlift::cuda\n";
}

std::string emit_bounds(const Problem& problem) {
  const std::vector<BoundedCapture> bounded = bounded_captures(problem);
  std::string text = "#pragma once\n#include \"cuda/kernels/common/capture_bounds.cuh\"\n\n";
  text += fmt::format("#define FL_BOUNDS_COUNT {}\n", bounded.size());
  if (bounded.empty()) {
    return text;
  }
  text += "namespace flashlift::cuda {\n\n";
  text += fmt::format("struct BoundsArguments {{\n  BoundsArgument of[{}];\n}};\n\n", bounded.size());
  text += "__device__ __forceinline__ void find_bounds(const BoundsArguments& arguments) {\n";
  for (size_t i = 0; i < bounded.size(); ++i) {
    const Capture& capture = problem.captures[bounded[i].index];
    text += fmt::format("  capture_bounds<{}, {}>(arguments.of[{}], {});\n", element_name(capture.dtype),
                        bounded[i].rows, i, capture.shape.size());
  }
  text += "}\n\nextern \"C\" __global__ void flashlift_bounds(const __grid_constant__ BoundsArguments arguments) {\n";
  return text + "  find_bounds(arguments);\n}\n\n}  // namespace flashlift::cuda\n";
}

}  // namespace flashlift::cuda
