// What this machine can do at most, for benchmarks to compare with: multiply-adds and reading memory, with as many
// threads as are asked for. A library for benchmarks/hardware.py; no part of Flashlift.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Independent sums that hide the latency of a multiply-add (4 cycles, two a cycle), with registers to spare.
constexpr int kSums = 12;
constexpr int kRepeats = 5;

__attribute__((target("avx512f"))) void fma_avx512(int64_t count) {
  __m512 sums[kSums];
  for (__m512& sum : sums) {
    sum = _mm512_set1_ps(1.0f);
  }
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(sum, factor, factor);
    }
  }
  for (__m512& sum : sums) {
    asm volatile("" : "+v"(sum));
  }
}

__attribute__((target("avx2,fma"))) void fma_avx2(int64_t count) {
  __m256 sums[kSums];
  for (__m256& sum : sums) {
    sum = _mm256_set1_ps(1.0f);
  }
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(sum, factor, factor);
    }
  }
  for (__m256& sum : sums) {
    asm volatile("" : "+x"(sum));
  }
}

__attribute__((target("avx512f,avx512bf16"))) void dot_bf16(int64_t count) {
  __m512 sums[kSums];
  for (__m512& sum : sums) {
    sum = _mm512_set1_ps(1.0f);
  }
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, factor, factor);
    }
  }
  for (__m512& sum : sums) {
    asm volatile("" : "+v"(sum));
  }
}

// The best of a few tries, in units of `work` a second, where `work` is what one thread does in one call of `body`.
template <typename F>
double best_rate(int threads, double work, F body) {
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = Clock::now();
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) {
      others.emplace_back(body, i);
    }
    body(0);
    for (std::thread& other : others) {
      other.join();
    }
    best = std::max(best, work * threads / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

uint64_t sum_of(const uint64_t* data, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    for (int j = 0; j < 16; ++j) {
      sums[j] += data[i + j];
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

extern "C" {

// fp32, in GFLOP/s.
double hardware_fma_gflops(int threads) {
  const bool wide = __builtin_cpu_supports("avx512f");
  constexpr int64_t kCount = 20'000'000;
  const double flops = 2.0 * (wide ? 16 : 8) * kSums * kCount;
  return best_rate(threads, flops, [=](int) { wide ? fma_avx512(kCount) : fma_avx2(kCount); }) * 1e-9;
}

// bf16 products summed in fp32, in GFLOP/s; 0 where the processor has no instruction for it.
double hardware_bf16_gflops(int threads) {
  if (!__builtin_cpu_supports("avx512bf16")) {
    return 0;
  }
  constexpr int64_t kCount = 20'000'000;
  return best_rate(threads, 4.0 * 16 * kSums * kCount, [](int) { dot_bf16(kCount); }) * 1e-9;
}

// Reading memory that no cache holds, in GB/s.
double hardware_read_gbs(int threads) {
  constexpr int64_t kWords = 32 << 20;  // 256 MiB a thread
  std::vector<std::vector<uint64_t>> data(static_cast<size_t>(threads), std::vector<uint64_t>(kWords, 1));
  std::vector<uint64_t> sums(data.size());
  const auto body = [&](int i) { sums[static_cast<size_t>(i)] = sum_of(data[static_cast<size_t>(i)].data(), kWords); };
  const double rate = best_rate(threads, 8.0 * kWords, body);
  asm volatile("" : : "r"(sums.data()) : "memory");
  return rate * 1e-9;
}

}  // extern "C"
