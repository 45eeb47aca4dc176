// Reduction kernels.
// Compiled with -ffp-contract=off; every element takes the same steps wherever
// it lies, so results do not depend on how a buffer is cut.
#include "comm/host/reduce_kernels.h"

#include "convoy/base/check.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// One copy of each kernel for every instruction set; the loader picks the best. Sanitized builds do
// without, because the resolver would run before the sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CONVOY_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CONVOY_VECTOR_CLONES
#endif
// The shared body must become part of each copy.
#define CONVOY_INLINE_BODY inline __attribute__((always_inline))

namespace convoy {
namespace {

// Elements combined at a time: the intermediate block stays in the first cache.
constexpr std::int64_t kBlock = 1024;

// Float for the half types; unsigned for integers, whose overflow is defined.
template <class T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<c10::Half> {
  using Type = float;
};
template <>
struct Wide<c10::BFloat16> {
  using Type = float;
};

template <class T>
CONVOY_INLINE_BODY typename Wide<T>::Type widen(T value) {
  return static_cast<typename Wide<T>::Type>(value);
}
template <>
CONVOY_INLINE_BODY float widen(c10::BFloat16 value) {
  const std::uint32_t bits = std::uint32_t{value.x} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

template <class T>
CONVOY_INLINE_BODY T narrow(typename Wide<T>::Type value) {
  return static_cast<T>(value);
}
// Round to nearest even; NaN stays NaN. Without branches, so that it is vectorised.
template <>
CONVOY_INLINE_BODY c10::BFloat16 narrow<c10::BFloat16>(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t chosen = (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded;
  return c10::BFloat16(static_cast<std::uint16_t>(chosen), c10::BFloat16::from_bits());
}

struct Sum {
  template <class T>
  static CONVOY_INLINE_BODY T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(
          static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <class T>
  static CONVOY_INLINE_BODY T combine(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  static CONVOY_INLINE_BODY T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

void store_block(std::byte* target, const std::byte* source, std::size_t bytes, StoreMode mode) {
#if defined(__SSE2__)
  if (mode == StoreMode::kStreaming) {
    const auto skew = (16 - reinterpret_cast<std::uintptr_t>(target) % 16) % 16;
    const auto head = std::min<std::size_t>(skew, bytes);
    std::memcpy(target, source, head);
    std::size_t at = head;
    for (; at + 64 <= bytes; at += 64) {
      for (std::size_t part = 0; part < 64; part += 16) {
        const auto value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at + part));
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + at + part), value);
      }
    }
    std::memcpy(target + at, source + at, bytes - at);
    return;
  }
#endif
  static_cast<void>(mode);
  std::memcpy(target, source, bytes);
}

// Streaming stores are weakly ordered; the flag that is set next must not overtake them.
void finish_stores(StoreMode mode) {
#if defined(__SSE2__)
  if (mode == StoreMode::kStreaming) _mm_sfence();
#else
  static_cast<void>(mode);
#endif
}

/// Divides a block. For a power of two the product with the inverse is the same number, as both are
/// rounded once from the same value, and takes a sixth of the time.
template <class Acc>
CONVOY_INLINE_BODY void divide(Acc* values, std::int64_t count, std::size_t sources) {
  const auto divisor = static_cast<Acc>(sources);
  if (std::is_floating_point_v<Acc> && std::has_single_bit(sources)) {
    const auto inverse = static_cast<Acc>(1) / divisor;
    for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<Acc>(values[i] * inverse);
  } else {
    for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<Acc>(values[i] / divisor);
  }
}

/// Two sources straight into one or two targets, without a block in between: about twice as fast
/// while the buffers are in the caches.
template <class T, class Op>
struct Pair {
  CONVOY_INLINE_BODY explicit Pair(const ReduceJob& job)
      : a(reinterpret_cast<const T*>(job.sources[0])),
        b(reinterpret_cast<const T*>(job.sources[1])),
        // Times a half is divided by two, in every bit.
        factor(static_cast<T>(job.op == ReduceOp::kAvg ? 0.5 : 1.0)) {}

  CONVOY_INLINE_BODY T combined(std::int64_t i) const {
    const T value = Op::combine(a[i], b[i]);
    // Minimum and maximum are one of the two, in every bit; any product would quiet NaN, and lose
    // subnormal numbers where a program has them flushed to zero.
    if constexpr (std::is_same_v<Op, Sum>) return value * factor;
    return value;
  }

  CONVOY_INLINE_BODY void store(T* first, T* second, std::int64_t begin, std::int64_t end) const {
    // A target that is a source is exactly that one, so no element depends on an earlier one.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
    for (std::int64_t i = begin; i < end; ++i) {
      const T value = combined(i);
      first[i] = value;
      second[i] = value;
    }
  }

#if defined(__SSE2__)
  CONVOY_INLINE_BODY void stream(T* target, std::int64_t count) const {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    const auto skew = (64 - reinterpret_cast<std::uintptr_t>(target) % 64) % 64 / sizeof(T);
    std::int64_t i = std::min(static_cast<std::int64_t>(skew), count);
    store(target, target, 0, i);
    for (; i + kLine <= count; i += kLine) {
      alignas(64) T line[kLine];
      for (std::int64_t k = 0; k < kLine; ++k) line[k] = combined(i + k);
      for (std::int64_t k = 0; k < kLine; k += kLine / 4) {
        const auto value = _mm_load_si128(reinterpret_cast<const __m128i*>(line + k));
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + i + k), value);
      }
    }
    store(target, target, i, count);
    finish_stores(StoreMode::kStreaming);
  }
#endif

  const T* a;
  const T* b;
  T factor;
};

template <class T, class Op>
CONVOY_INLINE_BODY void reduce_pair(const ReduceJob& job) {
  const Pair<T, Op> pair(job);
  T* const first = reinterpret_cast<T*>(job.targets.front());
#if defined(__SSE2__)
  if (job.store == StoreMode::kStreaming && job.targets.size() == 1) {
    return pair.stream(first, job.count);
  }
#endif
  pair.store(first, reinterpret_cast<T*>(job.targets.back()), 0, job.count);
}

// Ordinary tensors may begin anywhere (from_blob); blocks are copied there byte by byte.
template <class T>
bool are_aligned(std::span<std::byte* const> targets) {
  return std::all_of(targets.begin(), targets.end(), [](const std::byte* target) {
    return reinterpret_cast<std::uintptr_t>(target) % alignof(T) == 0;
  });
}

template <class T, class Op>
CONVOY_INLINE_BODY void reduce_body(const ReduceJob& job) {
  if constexpr (std::is_floating_point_v<T>) {
    if (job.sources.size() == 2 && job.targets.size() <= 2 && are_aligned<T>(job.targets)) {
      return reduce_pair<T, Op>(job);
    }
  }
  using Acc = typename Wide<T>::Type;
  alignas(64) Acc sum[kBlock];
  alignas(64) T result[kBlock];
  const auto sources = job.sources.size();
  for (std::int64_t begin = 0; begin < job.count; begin += kBlock) {
    const auto n = std::min(kBlock, job.count - begin);
    const auto source = [&](std::size_t index) {
      return reinterpret_cast<const T*>(job.sources[index]) + begin;
    };
    const T* __restrict a = source(0);
    if (sources == 1) {
      for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(a[i]);
    } else {
      const T* __restrict b = source(1);
      for (std::int64_t i = 0; i < n; ++i) sum[i] = Op::combine(widen(a[i]), widen(b[i]));
    }
    for (std::size_t index = 2; index < sources; ++index) {
      const T* __restrict next = source(index);
      for (std::int64_t i = 0; i < n; ++i) sum[i] = Op::combine(sum[i], widen(next[i]));
    }
    if (job.op == ReduceOp::kAvg) divide(sum, n, sources);
    const std::byte* block = reinterpret_cast<const std::byte*>(sum);
    if constexpr (!std::is_same_v<T, Acc>) {
      for (std::int64_t i = 0; i < n; ++i) result[i] = narrow<T>(sum[i]);
      block = reinterpret_cast<const std::byte*>(result);
    }
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    for (auto* target : job.targets) {
      store_block(target + static_cast<std::size_t>(begin) * sizeof(T), block, bytes, job.store);
    }
  }
  finish_stores(job.store);
}

// The copies cannot be made of templates, so each combination gets a name.
#define CONVOY_REDUCERS(Name, Type)                                                           \
  CONVOY_VECTOR_CLONES void sum_##Name(const ReduceJob& job) { reduce_body<Type, Sum>(job); } \
  CONVOY_VECTOR_CLONES void min_##Name(const ReduceJob& job) { reduce_body<Type, Min>(job); } \
  CONVOY_VECTOR_CLONES void max_##Name(const ReduceJob& job) { reduce_body<Type, Max>(job); } \
  void reduce_##Name(const ReduceJob& job) {                                                  \
    if (job.op == ReduceOp::kMin) return min_##Name(job);                                     \
    if (job.op == ReduceOp::kMax) return max_##Name(job);                                     \
    sum_##Name(job);                                                                          \
  }

CONVOY_REDUCERS(f64, double)
CONVOY_REDUCERS(f32, float)
CONVOY_REDUCERS(bf16, c10::BFloat16)
CONVOY_REDUCERS(f16, c10::Half)
CONVOY_REDUCERS(i64, std::int64_t)
CONVOY_REDUCERS(i32, std::int32_t)
CONVOY_REDUCERS(u8, std::uint8_t)
#undef CONVOY_REDUCERS

}  // namespace

void reduce(const ReduceJob& job) {
  switch (job.dtype) {
    case at::ScalarType::Double: return reduce_f64(job);
    case at::ScalarType::Float: return reduce_f32(job);
    case at::ScalarType::BFloat16: return reduce_bf16(job);
    case at::ScalarType::Half: return reduce_f16(job);
    case at::ScalarType::Long: return reduce_i64(job);
    case at::ScalarType::Int: return reduce_i32(job);
    case at::ScalarType::Byte: return reduce_u8(job);
    case at::ScalarType::Bool: {
      // Bytes 0 and 1: "or" is their maximum, "and" their minimum.
      ReduceJob bytes = job;
      if (job.op == ReduceOp::kSum) bytes.op = ReduceOp::kMax;
      return reduce_u8(bytes);
    }
    default: CONVOY_CHECK(false, "no reduction for type ", c10::toString(job.dtype));
  }
}

void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes, StoreMode store) {
  store_block(target, source, bytes, store);
  finish_stores(store);
}

}  // namespace convoy
