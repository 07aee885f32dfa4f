#include "stablehlo/reader/ops.h"

#include <gtest/gtest.h>

#include "stablehlo/read.h"

namespace flashlift::stablehlo {
namespace {

// The only operation called `name` in a function with one argument of each kind.
class OneOp {
 public:
  OneOp(const char* name, const std::string& body)
      : module(
            read("func.func @main(%x: tensor<4x6xf32>, %i: tensor<4x6xi32>, %u: tensor<4x6xui32>, %p: tensor<4x6xi1>, "
                 "%f: tensor<f32>, %s: tensor<i32>, %h: tensor<4x6xbf16>) {\n" +
                 body + "\n  return\n}\n")),
        op(find(module, name)) {}
  Module module;
  mlir::Operation* op;
};

std::vector<int64_t> list(llvm::ArrayRef<int64_t> array) { return array.vec(); }
using List = std::vector<int64_t>;

TEST(Ops, DimensionsOfDots) {
  const OneOp general("stablehlo.dot_general",
                      "%0 = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [1] x [1] : "
                      "(tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4xf32>");
  EXPECT_EQ(dot_dims(general.op)->lhs_batch, List{0});
  EXPECT_EQ(dot_dims(general.op)->rhs_contract, List{1});
  const OneOp plain("stablehlo.dot",
                    "%t = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>\n"
                    "%0 = stablehlo.dot %x, %t : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>");
  EXPECT_EQ(dot_dims(plain.op)->lhs_contract, List{1});
  EXPECT_EQ(dot_dims(plain.op)->rhs_contract, List{0});
  EXPECT_FALSE(dot_dims(find(plain.module, "stablehlo.transpose")).has_value());
  EXPECT_EQ(list(permutation(find(plain.module, "stablehlo.transpose"))), (List{1, 0}));
}

TEST(Ops, SlicesPadsAndConcatenations) {
  const OneOp slice("stablehlo.slice", "%0 = stablehlo.slice %x [1:4, 0:6:2] : (tensor<4x6xf32>) -> tensor<3x3xf32>");
  EXPECT_EQ(list(slice_bounds(slice.op)->start), (List{1, 0}));
  EXPECT_EQ(list(slice_bounds(slice.op)->stride), (List{1, 2}));
  const OneOp pad("stablehlo.pad",
                  "%0 = stablehlo.pad %x, %f, low = [0, -1], high = [1, 0], interior = [0, 1] : "
                  "(tensor<4x6xf32>, tensor<f32>) -> tensor<5x10xf32>");
  EXPECT_EQ(list(padding(pad.op)->low), (List{0, -1}));
  EXPECT_EQ(list(padding(pad.op)->interior), (List{0, 1}));
  const OneOp join("stablehlo.concatenate",
                   "%0 = stablehlo.concatenate %x, %x, dim = 1 : (tensor<4x6xf32>, "
                   "tensor<4x6xf32>) -> tensor<4x12xf32>");
  EXPECT_EQ(concat_dim(join.op), 1);
}

TEST(Ops, CompareTypeFollowsTheElements) {
  const OneOp floats("stablehlo.compare",
                     "%0 = stablehlo.compare GE, %x, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>");
  EXPECT_EQ(compare(floats.op)->direction, CompareDirection::kGe);
  EXPECT_EQ(compare(floats.op)->type, CompareType::kFloat);
  const OneOp ints("stablehlo.compare",
                   "%0 = stablehlo.compare LT, %i, %i : (tensor<4x6xi32>, tensor<4x6xi32>) -> tensor<4x6xi1>");
  EXPECT_EQ(compare(ints.op)->type, CompareType::kSigned);
  const OneOp bits("stablehlo.compare",
                   "%0 = stablehlo.compare EQ, %p, %p : (tensor<4x6xi1>, tensor<4x6xi1>) -> tensor<4x6xi1>");
  EXPECT_EQ(compare(bits.op)->type, CompareType::kUnsigned);
  const OneOp total(
      "stablehlo.compare",
      "%0 = stablehlo.compare EQ, %x, %x, TOTALORDER : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>");
  EXPECT_EQ(compare(total.op)->type, CompareType::kTotalOrder);
}

Reducer reducer_of(const std::string& body, const std::string& result = "%r") {
  const OneOp reduce("stablehlo.reduce", R"(%0 = "stablehlo.reduce"(%x, %f) <{dimensions = array<i64: 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      )" + body + R"(
      "stablehlo.return"()" + result + R"() : (tensor<f32>) -> ()
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>)");
  return reduction(reduce.op)->reducer;
}

TEST(Ops, ReducersOfOneOperation) {
  EXPECT_EQ(reducer_of("%r = stablehlo.add %a, %b : tensor<f32>"), Reducer::kAdd);
  EXPECT_EQ(reducer_of("%r = stablehlo.maximum %b, %a : tensor<f32>"), Reducer::kMaximum);
  EXPECT_EQ(reducer_of("%r = stablehlo.maximum %a, %a : tensor<f32>"), Reducer::kOther);
  EXPECT_EQ(reducer_of("%r = stablehlo.subtract %a, %b : tensor<f32>"), Reducer::kOther);
  EXPECT_EQ(reducer_of("%r = stablehlo.add %a, %f : tensor<f32>"), Reducer::kOther);
  EXPECT_EQ(reducer_of("", "%a"), Reducer::kOther);
  const std::string types = " : (tensor<f32>, tensor<f32>) -> tensor<i1>\n";
  const std::string select = "%r = stablehlo.select %g, %b, %a : tensor<i1>, tensor<f32>";
  EXPECT_EQ(reducer_of("%g = stablehlo.compare LT, %a, %b" + types + select), Reducer::kMaximum);
  EXPECT_EQ(reducer_of("%g = stablehlo.compare GE, %a, %b" + types + select), Reducer::kMinimum);
  EXPECT_EQ(reducer_of("%g = stablehlo.compare GE, %a, %f" + types + select), Reducer::kOther);
  EXPECT_EQ(reducer_of("%q = stablehlo.negate %a : tensor<f32>\n%r = stablehlo.add %q, %b : tensor<f32>"),
            Reducer::kOther);
}

Reducer arg_reducer_of(const std::string& predicate) {
  const OneOp reduce("stablehlo.reduce",
                     R"(%0:2 = stablehlo.reduce(%x init: %f), (%i init: %s) across dimensions = [1] :
      (tensor<4x6xf32>, tensor<4x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xi32>)
    reducer(%a: tensor<f32>, %c: tensor<f32>) (%ai: tensor<i32>, %ci: tensor<i32>) {
      )" + predicate + R"(
      %v = stablehlo.select %g, %a, %c : tensor<i1>, tensor<f32>
      %w = stablehlo.select %g, %ai, %ci : tensor<i1>, tensor<i32>
      stablehlo.return %v, %w : tensor<f32>, tensor<i32>
    })");
  return reduction(reduce.op)->reducer;
}

TEST(Ops, ReducersWithIndices) {
  const std::string types = " : (tensor<f32>, tensor<f32>) -> tensor<i1>\n";
  EXPECT_EQ(arg_reducer_of("%g = stablehlo.compare GT, %a, %c, FLOAT" + types), Reducer::kArgMaximum);
  EXPECT_EQ(arg_reducer_of("%g = stablehlo.compare LE, %c, %a, FLOAT" + types), Reducer::kArgMaximum);
  EXPECT_EQ(arg_reducer_of("%g = stablehlo.compare LT, %a, %c, FLOAT" + types), Reducer::kArgMinimum);
  EXPECT_EQ(arg_reducer_of("%g = stablehlo.compare EQ, %a, %c, FLOAT" + types), Reducer::kOther);
  // JAX's argmax: NaN counts as the largest.
  EXPECT_EQ(
      arg_reducer_of("%q = stablehlo.compare GT, %a, %c, FLOAT" + types + "%n = stablehlo.compare NE, %a, %a, FLOAT" +
                     types + "%g = stablehlo.or %q, %n : tensor<i1>"),
      Reducer::kArgMaximum);
}

TEST(Ops, ConstantsAndSplats) {
  const OneOp op("stablehlo.add", R"(
    %c = stablehlo.constant dense<[1.5, -2.0, 0xFF800000]> : tensor<3xf32>
    %k = stablehlo.constant dense<[true, false]> : tensor<2xi1>
    %m = stablehlo.constant dense<[-1, 200]> : tensor<2xi8>
    %w = stablehlo.constant dense<[255, 0]> : tensor<2xui8>
    %o = stablehlo.constant dense<0.1> : tensor<f32>
    %n = stablehlo.convert %o : (tensor<f32>) -> tensor<bf16>
    %g = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<bf16>) -> tensor<4x6xbf16>
    %0 = stablehlo.add %h, %g : tensor<4x6xbf16>
    "test.use"(%c, %k, %m, %w) : (tensor<3xf32>, tensor<2xi1>, tensor<2xi8>, tensor<2xui8>) -> ())");
  mlir::Operation* use = find(op.module, "test.use");
  EXPECT_EQ(element_as_double(constant(use->getOperand(0)), 1), -2.0);
  EXPECT_EQ(element_as_double(constant(use->getOperand(0)), 2), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(element_as_integer(constant(use->getOperand(1)), 0), 1);
  EXPECT_EQ(element_as_integer(constant(use->getOperand(2)), 0), -1);
  EXPECT_EQ(element_as_integer(constant(use->getOperand(3)), 0), 255);
  EXPECT_FALSE(element_as_integer(constant(use->getOperand(0)), 0).has_value());
  EXPECT_FALSE(splat(use->getOperand(0)).has_value());
  EXPECT_EQ(splat(op.op->getOperand(1)), 0.10009765625);  // rounded to bf16 on the way
  EXPECT_FALSE(splat(op.op->getOperand(0)).has_value());
  EXPECT_FALSE(constant(op.op->getOperand(0)));
}

TEST(Ops, TypesAndKinds) {
  const OneOp op("stablehlo.custom_call",
                 R"(%0 = stablehlo.custom_call @target(%x) {api_version = 4 : i32, backend_config = {a = 1 : i64},
                    has_side_effect = true} : (tensor<4x6xf32>) -> tensor<4x6xf32>)");
  EXPECT_EQ(custom_call(op.op)->target, "target");
  EXPECT_EQ(custom_call(op.op)->api_version, 4);
  EXPECT_TRUE(custom_call(op.op)->has_side_effect);
  EXPECT_FALSE(is_removable(op.op));
  const auto arguments = op.op->getBlock()->getArguments();
  EXPECT_EQ(dtype(arguments[0].getType()), DType::kF32);
  EXPECT_EQ(dtype(arguments[2].getType()), DType::kU32);
  EXPECT_EQ(dtype(arguments[3].getType()), DType::kBool);
  EXPECT_EQ(dtype(arguments[6].getType()), DType::kBF16);
  EXPECT_EQ(list(shape(arguments[0])), (List{4, 6}));
  EXPECT_EQ(kind(arguments[0]), OpKind::kOther);
}

TEST(Ops, GatherAndDynamicSlice) {
  const OneOp op("stablehlo.gather", R"(
    %d = stablehlo.dynamic_slice %i, %s, %s, sizes = [1, 5] : (tensor<4x6xi32>, tensor<i32>, tensor<i32>) -> tensor<1x5xi32>
    %n = stablehlo.reshape %d : (tensor<1x5xi32>) -> tensor<5x1xi32>
    %0 = "stablehlo.gather"(%x, %n) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<5x1xi32>) -> tensor<5x6xf32>)");
  ASSERT_TRUE(gather(op.op).has_value());
  EXPECT_EQ(gather(op.op)->dims.start_index_map, List{0});
  EXPECT_EQ(list(gather(op.op)->slice_sizes), (List{1, 6}));
  EXPECT_FALSE(gather(op.op)->indices_are_sorted);
  EXPECT_EQ(list(dynamic_slice_sizes(find(op.module, "stablehlo.dynamic_slice"))), (List{1, 5}));
}

TEST(Ops, Elementwise) {
  const OneOp op("stablehlo.select", R"(
    %c = stablehlo.constant dense<true> : tensor<i1>
    %1 = stablehlo.select %c, %x, %x : tensor<i1>, tensor<4x6xf32>
    %2 = stablehlo.select %p, %x, %1 : tensor<4x6xi1>, tensor<4x6xf32>
    %3 = chlo.square %2 : tensor<4x6xf32> -> tensor<4x6xf32>)");
  EXPECT_FALSE(is_elementwise(op.op));  // one predicate for all elements
  EXPECT_TRUE(is_elementwise(op.op->getNextNode()));
  EXPECT_TRUE(is_elementwise(op.op->getNextNode()->getNextNode()));
  EXPECT_FALSE(is_elementwise(find(op.module, "stablehlo.constant")));
}

}  // namespace
}  // namespace flashlift::stablehlo
