#include "cpu/jit/math.h"

#include <llvm/IR/Intrinsics.h>

#include <cmath>

namespace flashlift::cpu {
namespace {

// Adding this to |x| < 2^22 puts round(x) into the low mantissa bits. fptosi would be shorter, but is undefined for
// NaN.
constexpr double kRoundingMagic = 12582912.0;
constexpr double kLog2E = 1.44269504088896340736;
// ln 2 in two parts. The first has so few bits that its product with an integer exponent is exact.
constexpr double kLn2High = 0.693145751953125;
constexpr double kLn2Low = 1.42860682030941723212e-6;

}  // namespace

using llvm::Value;

Value* MathEmitter::fma(Value* a, Value* b, Value* c) {
  return ir_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
}

Value* MathEmitter::number(double x, Value* like) { return llvm::ConstantFP::get(like->getType(), x); }

Value* MathEmitter::integer(int64_t x, Value* like) { return llvm::ConstantInt::getSigned(like->getType(), x); }

Value* MathEmitter::to_int_bits(Value* x) {
  return ir_.CreateBitCast(x, x->getType()->getWithNewType(ir_.getInt32Ty()));
}

Value* MathEmitter::to_float_bits(Value* x) {
  return ir_.CreateBitCast(x, x->getType()->getWithNewType(ir_.getFloatTy()));
}

Value* MathEmitter::polynomial(Value* x, std::initializer_list<double> coefficients) {
  auto c = coefficients.end();
  Value* sum = number(*--c, x);
  while (c != coefficients.begin()) {
    sum = fma(sum, x, number(*--c, x));
  }
  return sum;
}

MathEmitter::Reduced MathEmitter::round(Value* x) {
  Value* magic = number(kRoundingMagic, x);
  Value* shifted = ir_.CreateFAdd(x, magic);
  Value* magic_bits = to_int_bits(magic);
  return {ir_.CreateSub(to_int_bits(shifted), magic_bits), ir_.CreateFSub(shifted, magic)};
}

Value* MathEmitter::scale(Value* x, Value* n) {
  Value* half = ir_.CreateAShr(n, integer(1, n));
  Value* rest = ir_.CreateSub(n, half);
  auto power = [&](Value* e) {
    return to_float_bits(ir_.CreateShl(ir_.CreateAdd(e, integer(127, e)), integer(23, e)));
  };
  return ir_.CreateFMul(ir_.CreateFMul(x, power(half)), power(rest));
}

Value* MathEmitter::limit(Value* x, double low, double high) {
  Value* lowest = number(low, x);
  Value* highest = number(high, x);
  x = ir_.CreateSelect(ir_.CreateFCmpOLT(x, lowest), lowest, x);
  return ir_.CreateSelect(ir_.CreateFCmpOGT(x, highest), highest, x);
}

Value* MathEmitter::exp(Value* x) {
  x = limit(x, -104.5, 89.5);
  const Reduced n = round(ir_.CreateFMul(x, number(kLog2E, x)));
  Value* r = fma(n.whole_float, number(-kLn2High, x), x);
  r = fma(n.whole_float, number(-kLn2Low, x), r);
  Value* p = polynomial(r, {0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4});
  p = fma(p, ir_.CreateFMul(r, r), r);
  return scale(ir_.CreateFAdd(p, number(1.0, x)), n.whole);
}

Value* MathEmitter::exp2(Value* x) {
  x = limit(x, -151.0, 129.0);
  const Reduced n = round(x);
  Value* r = ir_.CreateFSub(x, n.whole_float);
  Value* p = polynomial(r, {1.0, 0.6931472149680383, 0.24022652782875695, 0.05550310550998243, 0.009617692974951693,
                            0.0013406643904211913, 0.000155946775302018});
  return scale(p, n.whole);
}

// tanh |x| = t / (t + 2) with t = e^(2|x|) - 1 = 2^n (e^r - 1) + (2^n - 1). Nothing cancels, so that small arguments
// keep their relative accuracy without a second branch.
Value* MathEmitter::tanh(Value* x) {
  Value* magnitude = ir_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* highest = number(9.1, x);  // the result of larger arguments rounds to 1
  magnitude = ir_.CreateSelect(ir_.CreateFCmpOGT(magnitude, highest), highest, magnitude);
  const Reduced n = round(ir_.CreateFMul(magnitude, number(2.0 * kLog2E, x)));
  Value* r = ir_.CreateFAdd(magnitude, magnitude);
  r = fma(n.whole_float, number(-kLn2High, x), r);
  r = fma(n.whole_float, number(-kLn2Low, x), r);
  Value* p = polynomial(r, {0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4});
  p = fma(p, ir_.CreateFMul(r, r), r);
  Value* power = to_float_bits(ir_.CreateShl(ir_.CreateAdd(n.whole, integer(127, n.whole)), integer(23, n.whole)));
  Value* t = fma(power, p, ir_.CreateFSub(power, number(1.0, x)));
  Value* result = ir_.CreateFDiv(t, ir_.CreateFAdd(t, number(2.0, x)));
  return ir_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, result, x);
}

Value* MathEmitter::inverse_erf(Value* x) {
  // x times a polynomial of w = -log(1 - x^2) for w < 5, and of the square root of w above. Both polynomials minimise
  // the largest relative error: 9.4e-8 and 7.9e-8.
  Value* w = ir_.CreateFNeg(log(fma(ir_.CreateFNeg(x), x, number(1.0, x))));
  Value* centre = polynomial(
      ir_.CreateFSub(w, number(2.5, x)),
      {1.501409421578311, 0.2466407261125914, -0.004177707756958711, -0.0012537075042353062, 0.00021860220481252139,
       -4.396784832099438e-06, -3.528862501111697e-06, 3.437273886028381e-07, 2.8535035974920058e-08});
  Value* root = ir_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, w);
  Value* tail = polynomial(
      ir_.CreateFSub(root, number(3.0, x)),
      {2.8329769899791306, 1.0016741827461704, 0.00943562268892448, -0.007625303455713555, 0.005761797566853179,
       -0.003660140723624354, 0.0013002286937534456, 8.611106898645787e-05, -0.00016543139237899093});
  Value* ratio = ir_.CreateSelect(ir_.CreateFCmpOLT(w, number(5.0, x)), centre, tail);
  Value* at_pole = ir_.CreateFCmpOEQ(ir_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), number(1.0, x));
  Value* pole = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, number(INFINITY, x), x);
  return ir_.CreateSelect(at_pole, pole, ir_.CreateFMul(x, ratio));
}

// e^x / (1 + e^x) for negative x, since 1 / (1 + e^-x) would overflow where the result is a small denormal.
Value* MathEmitter::sigmoid(Value* x) {
  Value* one = number(1.0, x);
  Value* e = exp(ir_.CreateFNeg(ir_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x)));
  Value* numerator = ir_.CreateSelect(ir_.CreateFCmpOLT(x, number(0.0, x)), e, one);
  return ir_.CreateFDiv(numerator, ir_.CreateFAdd(one, e));
}

// Cephes' logf: mantissa in [sqrt(1/2), sqrt(2)), polynomial in m - 1, exponent added in two parts.
Value* MathEmitter::log(Value* x) {
  // Denormals are scaled into the normal range first.
  Value* small = ir_.CreateFCmpOLT(x, number(1.17549435e-38, x));
  Value* scaled = ir_.CreateSelect(small, ir_.CreateFMul(x, number(8388608.0, x)), x);
  Value* bits = to_int_bits(scaled);
  Value* offset = ir_.CreateSub(bits, integer(0x3f3504f3, bits));  // bits of sqrt(1/2)
  Value* exponent = ir_.CreateAShr(offset, integer(23, bits));
  Value* mantissa = to_float_bits(ir_.CreateSub(bits, ir_.CreateShl(exponent, integer(23, bits))));
  exponent = ir_.CreateSub(exponent, ir_.CreateSelect(small, integer(23, bits), integer(0, bits)));
  Value* e = ir_.CreateSIToFP(exponent, x->getType());
  Value* m = ir_.CreateFSub(mantissa, number(1.0, x));
  Value* z = ir_.CreateFMul(m, m);
  Value* p = polynomial(m, {3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1,
                            -1.2420140846e-1, 1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2});
  Value* y = ir_.CreateFMul(ir_.CreateFMul(p, m), z);
  y = fma(e, number(-2.12194440e-4, x), y);
  y = fma(z, number(-0.5, x), y);
  Value* result = fma(e, number(0.693359375, x), ir_.CreateFAdd(m, y));
  // Special values: log 0 = -inf, log of a negative number or NaN = NaN, log inf = inf.
  Value* infinity = llvm::ConstantFP::getInfinity(x->getType());
  result = ir_.CreateSelect(ir_.CreateFCmpOEQ(x, infinity), infinity, result);
  result =
      ir_.CreateSelect(ir_.CreateFCmpOEQ(x, number(0.0, x)), llvm::ConstantFP::getInfinity(x->getType(), true), result);
  return ir_.CreateSelect(ir_.CreateFCmpULT(x, number(0.0, x)), llvm::ConstantFP::getNaN(x->getType()), result);
}

}  // namespace flashlift::cpu
