// Elementary functions as straight-line vector IR. Everything works on f32 scalars and vectors alike.
//
// Largest errors over the sample of tests/cpu/jit_math_test.cpp, in ulp: exp 1.02, exp2 1.01, log 0.77, tanh 2.17,
// sigmoid 2.2, inverse_erf 3.5.
#pragma once

#include <llvm/IR/IRBuilder.h>

namespace flashlift::cpu {

// Emits into `builder`. Lives as long as the function being built.
class MathEmitter {
 public:
  explicit MathEmitter(llvm::IRBuilder<>& builder) : ir_(builder) {}

  llvm::Value* exp(llvm::Value* x);
  llvm::Value* exp2(llvm::Value* x);
  llvm::Value* log(llvm::Value* x);
  llvm::Value* tanh(llvm::Value* x);
  llvm::Value* sigmoid(llvm::Value* x);
  llvm::Value* inverse_erf(llvm::Value* x);

  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  // x as a constant of y's type.
  llvm::Value* number(double x, llvm::Value* like);
  llvm::Value* integer(int64_t x, llvm::Value* like);
  llvm::Value* to_int_bits(llvm::Value* x);
  llvm::Value* to_float_bits(llvm::Value* x);
  // c[0] + c[1] x + ...
  llvm::Value* polynomial(llvm::Value* x, std::initializer_list<double> coefficients);

 private:
  struct Reduced {
    llvm::Value* whole;  // i32: the power of two
    llvm::Value* whole_float;
  };
  // Rounds x to the nearest integer, |x| < 2^22; NaN gives an arbitrary integer and never undefined behaviour.
  Reduced round(llvm::Value* x);
  // x * 2^n with n in [-300, 300], rounding once into the denormal range.
  llvm::Value* scale(llvm::Value* x, llvm::Value* n);
  // x limited to [low, high]; NaN stays.
  llvm::Value* limit(llvm::Value* x, double low, double high);

  llvm::IRBuilder<>& ir_;
};

}  // namespace flashlift::cpu
