// Compiles a function once per instruction set; the loader picks the best the processor has.
#pragma once

// Sanitized builds do without: the resolver would run before the sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CONVOY_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CONVOY_VECTOR_CLONES
#endif

/// For the shared body of cloned functions: it must become part of each clone.
#define CONVOY_INLINE_BODY inline __attribute__((always_inline))
