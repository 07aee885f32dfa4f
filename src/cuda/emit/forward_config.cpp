#include "cuda/emit/forward_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "cuda/emit/program_emitter.h"
#include "score/operation.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int64_t kHopperBookkeeping = 1536;  // barriers and the like
constexpr int kHopperStages = 2;
constexpr int64_t kVisitsBytes = 512;    // of the portable kernel: see kernels/sm80/block_visits.cuh
constexpr int64_t kFirstRowsBytes = 16;  // likewise: see kernels/sm80/forward.cu
constexpr int kSwizzledRows = 8;
constexpr int kMaximumLag = 8;  // the largest probability is then 2^8, which both 16-bit types hold

// Without normalisation, the output is relative to the true maximum. Row maxima must be the true ones, too.
int maximum_lag(const Problem& problem) { return problem.normalize && !problem.want_row_max ? kMaximumLag : 0; }

bool divides_by_constant(const Program& program, const Node& node) {
  const Node& divisor = program.nodes[node.operands[1]];
  return divisor.op == Op::k_constant && std::isnormal(std::bit_cast<float>(static_cast<uint32_t>(divisor.payload)));
}

}  // namespace

bool may_mask(const Program& score_mod) {
  return std::any_of(score_mod.nodes.begin(), score_mod.nodes.end(), [&](const Node& node) {
    if (node.type != Type::kF32) {
      return false;
    }
    if (node.op == Op::k_constant) {
      return !std::isfinite(std::bit_cast<float>(static_cast<uint32_t>(node.payload)));
    }
    if (node.op == Op::k_div) {
      return !divides_by_constant(score_mod, node);
    }
    return node.op == Op::k_load || score::has_pole(score::operation(node.op).shape);
  });
}

namespace {

// Whether the mask only compares the key's position with the query's, like a causal mask. Such masks leave little of a
// wide tile unused.
bool is_one_comparison(const Program& mask_mod) {
  const auto compares = [](const Node& node) {
    return node.op == Op::k_lt || node.op == Op::k_le || node.op == Op::k_gt || node.op == Op::k_ge;
  };
  const auto others = [&](const Node& node) { return node.type == Type::kI1 && !compares(node); };
  return std::ranges::count_if(mask_mod.nodes, compares) == 1 && std::ranges::none_of(mask_mod.nodes, others) &&
         mask_mod.captures.empty();
}

int64_t hopper_shared_bytes(const ForwardConfig& config) {
  const int64_t qk_row = round_up(config.head_dim_padded, 64) * 2;
  const int64_t v_row = round_up(config.value_dim_padded, 64) * 2;
  return config.q_stages * config.q_tile * qk_row + config.stages * config.kv_tile * (qk_row + v_row) +
         kHopperBookkeeping;
}

int64_t portable_shared_bytes(const ForwardConfig& config) {
  const auto element = static_cast<int64_t>(size_in_bytes(config.dtype));
  const int64_t qk_row = config.head_dim_padded * element + 16;
  const int64_t v_row = config.value_dim_padded * element + 16;
  const bool split = config.decodes();  // each warp has all rows, and 16 keys
  const int64_t probability_rows = config.threads / 32 * 16;
  const int64_t probability_keys = split ? 16 : config.kv_tile;
  const int64_t probabilities = config.dtype == DType::kF32 ? probability_rows * (probability_keys * element + 16) : 0;
  return config.q_tile * qk_row + config.stages * config.kv_tile * (qk_row + v_row) + probabilities;
}

// Registers of a consumer thread that are live during the whole loop: scores, probabilities, accumulator.
int hopper_live_registers(const ForwardConfig& config) {
  return config.kv_tile / 2 + config.kv_tile / 4 + config.value_dim_padded / 2;
}

void set_warpgroups(ForwardConfig& config, int consumers) {
  config.q_tile = 64 * consumers;
  config.threads = 128 * (consumers + 1);
  // All threads together may not have more registers than the block starts with. Under a mask the scout needs some,
  // too, and more if it reads captured tensors.
  const bool scouts = config.has_mask_mod || config.has_score_mod;
  switch (consumers) {
    case 2:
      config.producer_registers = config.scout_loads ? 56 : scouts ? 40 : 24;
      config.consumer_registers = config.scout_loads ? 224 : scouts ? 232 : 240;
      break;
    case 3:
      config.producer_registers = 32;
      config.consumer_registers = 160;
      break;
    default:
      config.producer_registers = scouts ? 32 : 24;
      config.consumer_registers = 112;
  }
}

void set_tiles(ForwardConfig& config, int consumers, int kv_tile, int stages, bool ping_pong) {
  set_warpgroups(config, consumers);
  config.kv_tile = kv_tile;
  config.stages = stages;
  config.ping_pong = ping_pong;
}

bool has_short_rows(LengthClass length) { return length <= LengthClass::kUpTo2048; }

int widest_row(const ForwardConfig& config) { return std::max(config.head_dim_padded, config.value_dim_padded); }

// Tiles measured on an H200; docs/lessons has the figures. If registers suffice, more consumer warpgroups hide more
// latency and use each key for more queries. Otherwise there are two, with as many keys at a time as registers and
// shared memory allow. For short sequences and under masks, large tiles compute many scores that do not count.
void choose_hopper_tiles(const Problem& problem, LengthClass length, ForwardConfig& config) {
  constexpr size_t kSmallProgram = 16;
  const bool has_mods = config.has_score_mod || config.has_mask_mod;
  const bool small_mods = !problem.score_mod || problem.score_mod->nodes.size() <= kSmallProgram;
  const bool short_rows = has_short_rows(length);
  const bool shortest_rows = length <= LengthClass::kUpTo1024;
  const int widest = widest_row(config);
  if (!config.dropout) {  // its random numbers take registers
    if (widest <= 64 && config.has_mask_mod && short_rows) {
      // With the small tiles, a warpgroup skips those that its rows do not see. They leave few registers for programs.
      if (!small_mods || config.scout_loads) {
        return set_tiles(config, 2, 128, 4, true);
      }
      config.q_stages = 2;
      return set_tiles(config, 4, 64, 6, false);
    }
    if (widest <= 64 && !has_mods && shortest_rows) {
      return set_tiles(config, 4, 64, 4, false);
    }
    if (widest <= 64) {
      return set_tiles(config, 3, 128, 4, true);
    }
    if (widest <= 96 && !short_rows && config.has_mask_mod) {
      return set_tiles(config, 3, 96, 3, false);
    }
    if (widest <= 96 && !short_rows) {
      return set_tiles(config, 3, 112, kHopperStages, true);
    }
    if (widest <= 128 && short_rows && (widest <= 96 || !has_mods)) {
      return set_tiles(config, 2, 128, 3, false);
    }
    if (widest <= 128 && !config.has_mask_mod && small_mods && !short_rows) {
      return set_tiles(config, 3, 80, 4, has_mods);
    }
    if (widest <= 128 && problem.mask_mod && !config.has_score_mod && length > LengthClass::kUpTo4096 &&
        is_one_comparison(*problem.mask_mod)) {
      return set_tiles(config, 3, 80, 4, false);
    }
  }
  // Under a mask alone, warpgroups are faster without taking turns, unless the products are long or the mask loads
  // tensors.
  const bool mask_alone = config.has_mask_mod && !config.has_score_mod && !config.scout_loads;
  // For wide heads with the shortest rows, small tiles compute fewer scores beyond the diagonal.
  const bool fine = mask_alone && shortest_rows && config.value_dim_padded > 128;
  set_tiles(config, 2, 0, kHopperStages, !mask_alone || (config.value_dim_padded > 128 && !fine));
  for (const int kv_tile : {176, 160, 128, 112, 96, 80, 64}) {
    config.kv_tile = kv_tile;
    const bool narrow = (has_mods && kv_tile > 128) || (fine && kv_tile > 64);  // programs need registers, too
    const bool torn = config.dropout && kv_tile % 64;  // random numbers are generated for 64 keys at a time
    if (!narrow && !torn && hopper_live_registers(config) <= 196 && hopper_shared_bytes(config) <= kHopperSharedBytes) {
      break;
    }
  }
  config.stages = 3;
  if (hopper_shared_bytes(config) > kHopperSharedBytes) {
    config.stages = kHopperStages;
  }
}

}  // namespace

ForwardConfig common_config(const Problem& problem) {
  ForwardConfig config;
  config.dtype = problem.dtype;
  config.out_dtype = problem.out_dtype;
  config.d_out_dtype = problem.d_out_dtype();
  config.head_dim = static_cast<int>(problem.head_dim);
  config.value_dim = static_cast<int>(problem.value_dim);
  config.head_dim_padded = static_cast<int>(round_up(problem.head_dim, 16));
  config.value_dim_padded = static_cast<int>(round_up(problem.value_dim, 32));
  // Without a score_mod, the softmax applies the scale, so that its maximum is that of unscaled scores. f32 scores are
  // scaled before, so that their exponents keep all bits.
  config.has_score_mod = problem.score_mod.has_value() || problem.scale <= 0.0f || problem.dtype == DType::kF32;
  config.has_mask_mod = problem.mask_mod.has_value();
  config.redo_all = problem.drops_keys() || (problem.score_mod && may_mask(*problem.score_mod));
  config.has_sinks = problem.sinks > 0;
  config.want_lse = problem.want_lse;
  config.want_row_max = problem.want_row_max;
  config.want_residual = problem.want_residual;
  config.dropout = problem.drops_keys();
  // With dropout, the sums are over other keys than the output, so that they do not give the sum of its weights.
  config.exact_sums =
      problem.dtype != DType::kF32 && problem.want_lse && keeps_exact_output(problem) && !config.dropout;
  config.keep_mask = problem.keep_mask;
  config.dropout_words = problem.dropout_words;
  config.page_size = static_cast<int>(problem.page_size);
  config.normalize = problem.normalize;
  config.empty_rows = problem.empty_rows;
  config.captures = static_cast<int>(problem.captures.size());
  config.scout_loads = (problem.mask_mod && !problem.mask_mod->captures.empty()) || !bounded_captures(problem).empty();
  return config;
}

const char* to_string(KernelKind kind) {
  switch (kind) {
    case KernelKind::kBulkDecode:
      return "cuda_sm90_decode";
    case KernelKind::kDecode:
      return "cuda_decode";
    case KernelKind::kHopper:
      return "cuda_sm90";
    case KernelKind::kPortable:
      return "cuda_sm80";
  }
  return "?";
}

// Sets the number of a page's rows in one bulk copy. Fails with kUnsupported if pages are too small.
Status choose_page_piece(ForwardConfig& config) {
  config.page_piece = std::gcd(config.page_size, config.kv_tile);
  if (config.page_piece % kSwizzledRows != 0) {
    return unsupported("it copies multiples of {} keys, and pages of {} keys are not a multiple of that", kSwizzledRows,
                       config.page_size);
  }
  return {};
}

Result<ForwardConfig> choose_hopper_config(const Problem& problem, LengthClass length) {
  if (problem.dtype == DType::kF32) {
    return unsupported("its matrix products take bf16 and f16 only, and Flashlift does not round f32 inputs silently");
  }
  ForwardConfig config = common_config(problem);
  config.kind = KernelKind::kHopper;
  config.architecture = 90;
  config.vector_output = problem.value_dim % 8 == 0;
  choose_hopper_tiles(problem, length, config);
  config.plain_rounds = !has_short_rows(length);  // half as much code again, and 2 to 7 % faster for long rows
  // Warpgroups that take turns must all do the same number of rounds.
  config.skips = !config.plain_rounds && config.has_mask_mod && !config.ping_pong && config.kv_tile <= 64;
  config.maximum_lag = maximum_lag(problem);
  config.prefetch_q = config.plain_rounds || !config.has_mask_mod || widest_row(config) <= 64;
  FLASHLIFT_RETURN_IF_ERROR(choose_page_piece(config));
  config.shared_bytes = hopper_shared_bytes(config);
  return config;
}

struct DecodeTiles {
  int kv_tile, stages;
};
constexpr DecodeTiles kDecodeTiles[] = {{64, 3}, {64, 2}, {32, 3}, {32, 2}, {16, 3}, {16, 2}};

Status refuse_residual(const Problem& problem) {
  return problem.want_residual ? unsupported("it does not write the output's rounding error (`residual`)") : Status();
}

Result<ForwardConfig> choose_bulk_decode_config(const Problem& problem, int architecture) {
  FLASHLIFT_RETURN_IF_ERROR(refuse_residual(problem));
  if (problem.dtype == DType::kF32) {
    return unsupported("it copies bf16 and f16 only");
  }
  ForwardConfig config = common_config(problem);
  config.kind = KernelKind::kBulkDecode;
  config.architecture = architecture;
  config.q_tile = 16;
  // Half of the shared memory, so that a multiprocessor runs two blocks: one loads while the other combines results.
  constexpr int64_t kAvailable = kHopperSharedBytes / 2 - 2 * kHopperBookkeeping;
  const int64_t q_bytes = config.q_tile * (config.head_dim_padded + 8) * 2;
  const int64_t row = (round_up(config.head_dim_padded, 64) + round_up(config.value_dim_padded, 64)) * 2;
  for (const DecodeTiles tiles : kDecodeTiles) {
    config.kv_tile = tiles.kv_tile;
    config.stages = tiles.stages;
    config.threads = 2 * tiles.kv_tile + 32;
    config.shared_bytes = q_bytes + config.stages * config.kv_tile * row;
    if (config.shared_bytes <= kAvailable) {
      FLASHLIFT_RETURN_IF_ERROR(choose_page_piece(config));
      return config;
    }
  }
  return unsupported("it needs {} bytes of shared memory, more than the {} that a block may have", config.shared_bytes,
                     kAvailable);
}

Result<ForwardConfig> choose_decode_config(const Problem& problem, int architecture) {
  FLASHLIFT_RETURN_IF_ERROR(refuse_residual(problem));
  ForwardConfig config = common_config(problem);
  config.kind = KernelKind::kDecode;
  config.architecture = architecture;
  config.q_tile = 16;
  // Half of the shared memory if it is large, so that a multiprocessor runs two blocks: one loads while the other
  // combines results.
  const bool large = architecture == 90 || architecture == 100;
  const int64_t available = large ? kHopperSharedBytes / 2 - kHopperBookkeeping : kPortableSharedBytes;
  for (const DecodeTiles tiles : kDecodeTiles) {
    config.kv_tile = tiles.kv_tile;
    config.stages = tiles.stages;
    config.threads = 2 * tiles.kv_tile;
    config.shared_bytes = portable_shared_bytes(config);
    if (config.shared_bytes <= available) {
      return config;
    }
  }
  return unsupported("it needs {} bytes of shared memory, more than the {} that a block may have", config.shared_bytes,
                     available);
}

constexpr int64_t kReservedShared = 1024;

// The portable kernel's tiles for 16-bit inputs, in the order of preference (measured on an H100: docs/lessons). A
// product's speed is limited by its reads of shared memory, which two fragments for each warp halve; wide heads have no
// registers for that. The softmax of one block overlaps with the products of another on the same multiprocessor, and
// likewise between the warps of a large block.
struct PortableTiles {
  int q_tile, kv_tile, fragments, blocks;
  bool masks = true;  // whether it is also for problems with a mask
};
constexpr PortableTiles kPortableTiles[] = {{128, 128, 2, 2}, {128, 96, 2, 2, false}, {128, 64, 2, 2}, {128, 32, 2, 2},
                                            {64, 64, 1, 3},   {64, 64, 1, 2},         {128, 64, 1, 1}, {128, 32, 1, 1}};

// Whether the registers of a thread hold the sums of both products.
bool sums_fit(const PortableTiles& tiles, const ForwardConfig& config) {
  return tiles.fragments * (config.value_dim_padded + tiles.kv_tile) / 2 <= (tiles.blocks > 2 ? 128 : 192);
}

int64_t portable_half_shared_bytes(const ForwardConfig& config) {
  const int64_t elements =
      config.q_tile * config.head_dim_padded + config.kv_tile * (config.head_dim_padded + config.value_dim_padded);
  return elements * 2 + kVisitsBytes + kFirstRowsBytes;
}

Result<ForwardConfig> choose_portable_f32_config(ForwardConfig config) {
  struct Tiles {
    int q_tile, kv_tile, stages;
  };
  for (const Tiles tiles : {Tiles{64, 64, 2}, Tiles{64, 32, 2}, Tiles{32, 32, 2}, Tiles{32, 16, 1}}) {
    config.q_tile = tiles.q_tile;
    config.kv_tile = tiles.kv_tile;
    config.stages = tiles.stages;
    config.threads = 2 * tiles.q_tile;
    config.shared_bytes = portable_shared_bytes(config);
    const bool spills = config.dropout && tiles.kv_tile > 32 && config.value_dim_padded > 64;
    if (!spills && config.shared_bytes <= kPortableSharedBytes) {
      return config;
    }
  }
  return unsupported("it needs {} bytes of shared memory, more than the {} that a block may have", config.shared_bytes,
                     kPortableSharedBytes);
}

Result<ForwardConfig> choose_portable_config(const Problem& problem, int architecture) {
  ForwardConfig config = common_config(problem);
  config.kind = KernelKind::kPortable;
  config.architecture = architecture;
  if (config.dtype == DType::kF32) {
    return choose_portable_f32_config(config);
  }
  config.stages = 1;
  config.maximum_lag = maximum_lag(problem);
  const int64_t available = shared_memory(architecture);
  for (const PortableTiles& tiles : kPortableTiles) {
    config.q_tile = tiles.q_tile;
    config.kv_tile = tiles.kv_tile;
    config.fragments = tiles.fragments;
    config.blocks = tiles.blocks;
    config.threads = 2 * tiles.q_tile / tiles.fragments;
    config.shared_bytes = portable_half_shared_bytes(config);
    // Keys that share one of dropout's counters are consecutive in groups of 64.
    const bool suits = (tiles.masks || !config.has_mask_mod) && (!config.dropout || 128 % tiles.kv_tile == 0);
    if (suits && sums_fit(tiles, config) && tiles.blocks * (config.shared_bytes + kReservedShared) <= available) {
      return config;
    }
  }
  return unsupported("it needs {} bytes of shared memory, more than the {} that a block may have", config.shared_bytes,
                     available - kReservedShared);
}

int64_t shared_memory(int architecture) {
  constexpr int64_t kKiB = 1024;
  switch (architecture) {
    case 80:
    case 87:
      return 164 * kKiB;
    case 86:
    case 89:
    case 120:
    case 121:
      return 100 * kKiB;
    default:
      return 228 * kKiB;
  }
}

Result<ForwardConfig> choose_forward_config(const Problem& problem, KernelKind kind, LengthClass length,
                                            int architecture) {
  switch (kind) {
    case KernelKind::kBulkDecode:
      return choose_bulk_decode_config(problem, architecture);
    case KernelKind::kDecode:
      return choose_decode_config(problem, architecture);
    case KernelKind::kHopper:
      return choose_hopper_config(problem, length);
    case KernelKind::kPortable:
      break;
  }
  return choose_portable_config(problem, architecture);
}

std::string describe(const ForwardConfig& config) {
  std::string text = fmt::format("sm_{}{}, {}x{} tiles, {} stages, {} threads, {} KiB shared", config.architecture,
                                 config.kind == KernelKind::kHopper ? "a" : "", config.q_tile, config.kv_tile,
                                 config.stages, config.threads, config.shared_bytes / 1024);
  if (config.kind == KernelKind::kHopper) {
    text += config.ping_pong ? ", warpgroups take turns" : ", warpgroups run freely";
  }
  return text;
}

std::vector<std::string> definitions(const ForwardConfig& config) {
  std::vector<std::string> list;
  const auto define = [&](const char* name, int64_t value) { list.push_back(fmt::format("-DFL_{}={}", name, value)); };
  define("INPUT_F32", config.dtype == DType::kF32);
  define("BF16", config.dtype == DType::kBF16);
  define("OUT_F32", config.out_dtype == DType::kF32);
  define("OUT_BF16", config.out_dtype == DType::kBF16);
  define("OUT_VECTOR", config.vector_output);
  define("OUT_MAY_BE_VECTOR", config.value_dim % 8 == 0);
  define("HEAD_DIM", config.head_dim);
  define("VALUE_DIM", config.value_dim);
  define("QK_DIM", config.head_dim_padded);
  define("V_DIM", config.value_dim_padded);
  define("BLOCK_M", config.q_tile);
  define("BLOCK_N", config.kv_tile);
  define("STAGES", config.stages);
  define("SHARED_BYTES", config.shared_bytes);
  define("HAS_SCORE_MOD", config.has_score_mod);
  define("HAS_MASK_MOD", config.has_mask_mod);
  define("REDO_ALL", config.redo_all);
  define("HAS_SINKS", config.has_sinks);
  define("WANT_LSE", config.want_lse);
  define("WANT_ROW_MAX", config.want_row_max);
  define("WANT_RESIDUAL", config.want_residual);
  define("EXACT_SUMS", config.exact_sums);
  define("DROPOUT", config.dropout);
  define("KEEP_MASK", config.keep_mask);
  define("DROPOUT_WORDS", config.dropout_words);
  define("PAGE_SIZE", config.page_size);
  define("PAGE_PIECE", config.page_piece);
  define("SPLIT", config.decodes());
  define("BULK_COPIES", config.kind == KernelKind::kBulkDecode);
  define("MAXIMUM_LAG", config.maximum_lag);
  define("NORMALIZE", config.normalize);
  define("EMPTY_NAN", config.empty_rows == EmptyRows::kNan);
  define("EMPTY_UNIFORM", config.empty_rows == EmptyRows::kUniform);
  define("CAPTURE_COUNT", config.captures);
  if (config.kind == KernelKind::kHopper) {
    define("PING_PONG", config.ping_pong);
    define("PLAIN_ROUNDS", config.plain_rounds);
    define("PREFETCH_Q", config.prefetch_q);
    define("SKIPS", config.skips);
    define("Q_STAGES", config.q_stages);
    define("PRODUCER_REGISTERS", config.producer_registers);
    define("CONSUMER_REGISTERS", config.consumer_registers);
  }
  if (config.fragments > 0) {
    define("FRAGMENTS", config.fragments);
    define("BLOCKS", config.blocks);
    define("VISITS_BYTES", kVisitsBytes);
  }
  return list;
}

}  // namespace flashlift::cuda
