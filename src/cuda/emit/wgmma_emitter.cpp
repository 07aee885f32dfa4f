#include "cuda/emit/wgmma_emitter.h"

#include <fmt/format.h>

namespace flashlift::cuda {
namespace {

std::string repeated(int count, const char* format) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    list += (i > 0 ? ", " : "") + fmt::format(fmt::runtime(format), i);
  }
  return list;
}

// A product of several steps in one statement: NVRTC's time grows with the number of registers that its statements
// name.
class Product {
 public:
  // Sums of n columns: n / 2 registers of a thread, d. `rest`: the instruction's operands after the descriptors.
  Product(int n, const char* type, const char* rest)
      : registers_(n / 2),
        instruction_(fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}", n, type, type)),
        rest_(rest) {}

  int registers() const { return registers_; }

  // Adds an input of the statement and returns its name.
  std::string input(const char* constraint, const std::string& expression) {
    inputs_ += fmt::format("{}\"{}\"({})", inputs_.empty() ? "" : ", ", constraint, expression);
    return fmt::format("%{}", registers_ + inputs_count_++);
  }

  // A descriptor at an offset from another one. `name`: "x" or "y", valid until the next call with that name.
  std::string behind(const char* name, const std::string& descriptor, const std::string& offset) {
    line(fmt::format("add.s64 {}, {}, {};", name, descriptor, offset));
    return name;
  }

  // `adds`: a predicate. body() sets "p" and "t".
  void step(const std::string& left, const std::string& right, const char* adds) {
    line(
        fmt::format("{} {{{}}}, {}, {}, {}, {};", instruction_, repeated(registers_, "%{}"), left, right, adds, rest_));
  }

  // Sets p to `adds` != 0, and t to true. reads: whether the registers hold a value. (An instruction that may
  // accumulate reads its registers even if told not to, which keeps their old values alive.)
  std::string body(const std::string& adds, bool reads) const {
    return fmt::format(
        "  asm volatile(\"{{\\n.reg .pred p, t;\\n.reg .b64 x, y;\\nsetp.ne.b32 p, {}, 0;\\nsetp.eq.b32 t, 0, 0;\\n\"\n"
        "{}               \"}}\\n\"\n               : {}\n               : {});\n",
        adds, text_, repeated(registers_, reads ? "\"+f\"(d[{}])" : "\"=f\"(d[{}])"), inputs_);
  }

 private:
  void line(const std::string& instruction) { text_ += "               \"" + instruction + "\\n\"\n"; }

  int registers_;
  int inputs_count_ = 0;
  std::string instruction_;
  std::string rest_;
  std::string inputs_;
  std::string text_;
};

constexpr const char* kFunction = "__device__ __forceinline__ void";
constexpr int kStep = 16;         // elements of a sum that an instruction adds
constexpr int kRowsOfStep = 128;  // 16 rows of 128 bytes, in the unit of descriptors

// Scores: both operands are in shared memory, contiguous along the sum. 16 elements are 32 bytes of a row; the next box
// comes after a row. left_columns: elements in a row of the left operand's boxes. Overwrites d.
std::string emit_scores(const char* name, int n, int dim, const char* type, bool reads, int left_columns) {
  Product product(n, type, "1, 1, 0, 0");
  const std::string a = product.input("l", "a");
  const std::string b = product.input("l", "b");
  product.step(a, b, "p");
  for (int i = 1; i < dim / kStep; ++i) {
    const auto offset = [&](const char* box, int columns) {
      const int steps = columns / kStep;
      return product.input("n", fmt::format("{} * {} + {}", i / steps, box, i % steps * 2));
    };
    const std::string left = product.behind("x", a, offset("kLeftBox", left_columns));
    product.step(left, product.behind("y", b, offset("kRightBox", kSm90BoxColumns)), "t");
  }
  return fmt::format("template <int kLeftBox, int kRightBox>\n{} {}(float (&d)[{}], u64 a, u64 b) {{\n{}}}\n\n",
                     kFunction, name, product.registers(), product.body("0", reads));
}

// The output, or another sum: factors in registers; the other operand in shared memory, contiguous along its rows.
std::string emit_sum(int n, int rows, const char* type) {
  Product product(n, type, "1, 1, 1");
  const std::string b = product.input("l", "b");
  const std::string adds = product.input("r", "adds");
  for (int i = 0; i < rows / kStep; ++i) {
    std::string factors;
    for (int j = 0; j < 4; ++j) {
      factors += (j > 0 ? ", " : "") + product.input("r", fmt::format("factors[{}]", 4 * i + j));
    }
    product.step("{" + factors + "}", i == 0 ? b : product.behind("y", b, fmt::format("{}", i * kRowsOfStep)),
                 i == 0 ? "p" : "t");
  }
  return fmt::format("{} wgmma_pv(float (&d)[{}], const u32 (&factors)[{}], u64 b, int adds) {{\n{}}}\n\n", kFunction,
                     product.registers(), rows / 4, product.body(adds, true));
}

// A part of d_q: d_s times K, both contiguous along their rows, which are keys. K is in boxes of 64 keys and
// `box_columns` columns. Overwrites d, or adds to it.
std::string emit_dq(const char* name, int columns, int keys, const char* type, int box_columns, bool adds) {
  constexpr int kBoxSteps = 64 / kStep;
  const int rows_of_step = kRowsOfStep * box_columns / kSm90BoxColumns;
  Product product(columns, type, "1, 1, 1, 1");
  const std::string a = product.input("l", "a");
  const std::string b = product.input("l", "b");
  product.step(a, b, adds ? "t" : "p");
  for (int i = 1; i < keys / kStep; ++i) {
    const std::string offset =
        product.input("n", fmt::format("{} * kBox + {}", i / kBoxSteps, i % kBoxSteps * rows_of_step));
    const std::string left = product.behind("x", a, fmt::format("{}", i * kRowsOfStep));
    product.step(left, product.behind("y", b, offset), "t");
  }
  return fmt::format("template <int kBox>\n{} {}(float (&d)[{}], u64 a, u64 b) {{\n{}}}\n\n", kFunction, name,
                     product.registers(), product.body("0", adds));
}

const char* type_name(const ForwardConfig& config) { return config.dtype == DType::kBF16 ? "bf16" : "f16"; }

std::string header(const std::string& text) {
  return "#pragma once\n#include \"cuda/kernels/common/ptx.cuh\"\n\nnamespace flashlift::cuda {\n\n" + text +
         "}  // namespace flashlift::cuda\n";
}

}  // namespace

std::string emit_wgmma(const ForwardConfig& config) {
  const char* type = type_name(config);
  return header(emit_scores("wgmma_qk", config.kv_tile, config.head_dim_padded, type, true, kSm90BoxColumns) +
                emit_sum(config.value_dim_padded, config.kv_tile, type));
}

std::string emit_backward_wgmma(const Sm90BackwardKernel& kernel) {
  const ForwardConfig& config = kernel.config;
  const char* type = type_name(config);
  const int rows = config.kv_tile;  // of a sum
  // Whether s and d_p share registers.
  const bool shares = !kernel.fused && !kernel.captures && !kernel.d_p_apart;
  const int left = kernel.row_box_columns;
  std::string text = emit_scores("wgmma_qk", config.kv_tile, config.head_dim_padded, type, shares, left) +
                     emit_scores("wgmma_dp", config.kv_tile, config.value_dim_padded, type, shares, left);
  if (kernel.captures) {
    return header(text);
  }
  text += emit_sum(config.head_dim_padded, rows, type);
  if (config.value_dim_padded != config.head_dim_padded) {
    text += emit_sum(config.value_dim_padded, rows, type);
  }
  if (kernel.fused) {
    const int keys = kernel.roles ? config.q_tile / 2 : config.q_tile;  // of a block
    text += emit_dq("wgmma_dq", kernel.part_columns, keys, type, kernel.row_box_columns, false);
    if (kernel.roles) {
      text += emit_dq("wgmma_dq_more", kernel.part_columns, keys, type, kernel.row_box_columns, true);
    }
  }
  return header(text);
}

}  // namespace flashlift::cuda
