// Exact sums in shared memory, for the gradients of captured tensors of few elements: additions to few addresses in
// global memory wait for each other.
//
// Each element has some 32-bit integers, its words. The block has several copies of all words, among which its threads are
// divided. Word k counts multiples of 2^(8 k + first - 149). The significand of an f32 number, shifted by less than 8
// bits, is added to one word. An overflow adds 1 or -1 to the fourth word after it. The additions are of 32 bits because
// shared memory has no others: an atomicAdd of 64 bits, or of a float, is a loop.
//
// What no word holds is added in global memory. Since all additions are exact, their result depends neither on that nor on
// `first`, which the first value in the block determines.
#pragma once

#include "cuda/kernels/common/backward_params.h"
#include "cuda/kernels/common/captures.cuh"
#include "cuda/kernels/common/exact_sum.cuh"

namespace flashlift::cuda {

constexpr u32 kWordBits = kBlockWordBits;
constexpr u32 kWordsOfCarry = 32 / kWordBits;

__device__ __forceinline__ int add_shared(u32 address, int x) {
  int old;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(x));
  return old;
}

// The element's place among all of the tensor.
template <typename... Indices>
__device__ __forceinline__ long long gradient_offset(const CaptureGradient& gradient, Indices... indices) {
  long long offset = 0;
  int d = 0;
  ((offset += clamp_index(gradient, d, indices) * gradient.strides[d], ++d), ...);
  return offset;
}

__device__ __forceinline__ unsigned long long* exact_words(const CaptureGradient& gradient, long long offset) {
  return static_cast<unsigned long long*>(gradient.sums) + offset * kExactWords;
}

// An element's number among those that a block reads. kMoves: a bit for each dimension whose index is not the same for the
// whole block. (32 bits suffice: exact sums of 2^32 elements take 352 GiB.)
template <u32 kMoves, typename... Indices>
__device__ __forceinline__ u32 element_of_block(const CaptureGradient& gradient, Indices... indices) {
  u32 element = 0;
  int d = 0;
  ((element = (kMoves >> d & 1) != 0 ? element * gradient.sizes[d] + clamp_index(gradient, d, indices) : element, ++d),
   ...);
  return element;
}

// The same element's place among all of the tensor; `indices` of any position in the block.
template <u32 kMoves, typename... Indices>
__device__ __forceinline__ long long offset_of_element(const CaptureGradient& gradient, u32 element,
                                                       Indices... indices) {
  int d = 0;
  const int at[] = {clamp_index(gradient, d++, indices)...};
  long long offset = 0;
#pragma unroll
  for (d = static_cast<int>(sizeof...(indices)) - 1; d >= 0; --d) {
    u32 index = at[d];
    if ((kMoves >> d & 1) != 0) {
      const bool outermost = (kMoves & ((1u << d) - 1)) == 0;
      index = outermost ? element : element % gradient.sizes[d];
      element = outermost ? 0 : element / gradient.sizes[d];
    }
    offset += index * gradient.strides[d];
  }
  return offset;
}

class BlockSums {
 public:
  // memory: in shared memory, kBlockSumHeader bytes and the words.
  __device__ __forceinline__ BlockSums(const ElementTable& table, u32 memory)
      : table_(table), memory_(memory), own_words_(words() + 4 * (threadIdx.x & (table.copies - 1))) {}

  // Called by all of the block's threads that add, before a barrier.
  __device__ __forceinline__ void clear(int thread, int threads) const {
    if (thread == 0) {
      store_shared(memory_, kNoFirst);
    }
    for (int i = thread; i < word_count() * table_.copies; i += threads) {
      store_shared(words() + 4 * i, 0);
    }
  }

  // kMoves, indices: as for offset_of_element.
  template <u32 kMoves, typename... Indices>
  __device__ __forceinline__ void add(u32 element, float value, const CaptureGradient& gradient, Indices... indices) {
    const u32 bits = __float_as_uint(value);
    const u32 exponent = bits >> 23 & 0xff;
    // A negative difference is above all others: exponents before the first, denormal numbers (whose exponent is 0), and
    // all numbers before there is a first.
    const u32 shift = exponent - 1 - first_;
    float rest = value;  // for global memory
    if (shift < table_.bits) {
      rest = 0.0f;
      const u32 significand = (bits & 0x7fffff) | 0x800000;
      const int shifted = static_cast<int>(significand << shift % kWordBits);
      const int x = static_cast<int>(bits) < 0 ? -shifted : shifted;
      const u32 address = own_words_ + element * table_.element_bytes + shift / kWordBits * table_.word_bytes;
      const int old = add_shared(address, x);
      const int sum = static_cast<int>(static_cast<u32>(old) + static_cast<u32>(x));
      if (((old ^ sum) & (x ^ sum)) < 0) {
        rest = carry(x < 0 ? -1 : 1, shift / kWordBits, address);
      }
    } else if (first_ == kNoFirst && value != 0.0f) {
      first_ = choose_first(static_cast<int>(max(exponent, 1u) - 1));
    }
    if (rest != 0.0f) {
      add_exactly(exact_words(gradient, offset_of_element<kMoves>(gradient, element, indices...)), rest);
    }
  }

  // Adds the sums to those of all blocks. Called by all of the block's threads that added, behind a barrier.
  template <u32 kMoves, typename... Indices>
  __device__ __forceinline__ void add_to_gradient(int thread, int threads, const CaptureGradient& gradient,
                                                  Indices... indices) const {
    const u32 first = load_shared(memory_);
#pragma unroll 1
    for (int i = thread; i < word_count(); i += threads) {
      long long sum = 0;
#pragma unroll 1
      for (int copy = 0; copy < table_.copies; ++copy) {
        sum += load_shared(words() + i * table_.element_bytes + 4 * copy);
      }
      if (sum != 0) {
        const long long offset = offset_of_element<kMoves>(gradient, i % table_.elements, indices...);
        add_exactly(exact_words(gradient, offset), sum, first + kWordBits * (i / table_.elements));
      }
    }
  }

 private:
  static constexpr int kNoFirst = 1 << 16;  // above all exponents

  __device__ __forceinline__ u32 words() const { return memory_ + kBlockSumHeader; }
  __device__ __forceinline__ int word_count() const {
    return table_.elements * static_cast<int>(table_.bits / kWordBits);
  }

  // Adds 1 or -1 to the words that an overflow leads to. Returns what they do not hold.
  __device__ __forceinline__ float carry(int one, u32 word, u32 address) const {
    const int largest = one < 0 ? -0x7fffffff - 1 : 0x7fffffff;
    for (;;) {
      word += kWordsOfCarry;
      if (word * kWordBits >= table_.bits) {
        const float unit = __uint_as_float((first_ + kWordBits * word - 149 + 127) << 23);
        return one < 0 ? -unit : unit;
      }
      address += kWordsOfCarry * table_.word_bytes;
      if (add_shared(address, one) != largest) {
        return 0.0f;
      }
    }
  }

  // Most values in a block have an exponent near that of any other. The fourth word from the end is the last whose
  // overflow has a word.
  __device__ __forceinline__ int choose_first(int shift) const {
    const int bits = table_.bits;
    const int below = (bits - 32) * 5 / 8;
    const int first = max(min(shift - below, kExactHighestInteger - bits), 0);
    int before;
    asm volatile("atom.shared.cas.b32 %0, [%1], %2, %3;" : "=r"(before) : "r"(memory_), "r"(kNoFirst), "r"(first));
    return before == kNoFirst ? first : before;
  }

  const ElementTable& table_;
  const u32 memory_;
  const u32 own_words_;
  int first_ = kNoFirst;  // what this thread knows of it
};

}  // namespace flashlift::cuda
