// Chooses the kernels once, by what the processor has and HVD_SIMD allows, and checks the arguments.
#include "reduce.h"

#include <cstdlib>
#include <cstring>

namespace hvd {

namespace {

int rank_of(const char *wish) {
  if (wish && std::strcmp(wish, "baseline") == 0) return 0;
  if (wish && std::strcmp(wish, "avx2") == 0) return 1;
  return 2;
}

}  // namespace

Kernels choose_kernels(const char *wish) {
  const int allowed = rank_of(wish);
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && allowed >= 2) return avx512::kKernels;
  if (avx2 && allowed >= 1) return avx2::kKernels;
#else
  (void)allowed;
#endif
  return baseline::kKernels;
}

const Kernels &kernels() {
  static const Kernels chosen = choose_kernels(std::getenv("HVD_SIMD"));
  return chosen;
}

uint64_t adasum_scratch_bytes(hvd_dtype dtype, uint32_t n, uint64_t count) {
  const uint64_t element = dtype == HVD_FLOAT64 ? 8 : 4;  // fp16 and bf16 are combined in fp32
  uint64_t elements = 0, bytes = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(n), &elements)) return UINT64_MAX;
  return __builtin_mul_overflow(elements, element, &bytes) ? UINT64_MAX : bytes;
}

}  // namespace hvd

namespace {

hvd_status reduce_adasum(hvd::Job job) {
  const uint64_t bytes = hvd::adasum_scratch_bytes(job.dtype, job.n, job.count);
  job.scratch = bytes > SIZE_MAX / 2 ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!job.scratch) return HVD_E_MEMORY;
  const bool done = hvd::kernels().reduce(job);
  std::free(job.scratch);
  return done ? HVD_OK : HVD_E_INVALID;
}

}  // namespace

extern "C" {

uint32_t hvd_dtype_bytes(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_UINT8:
    case HVD_INT8:
    case HVD_BOOL: return 1;
    case HVD_UINT16:
    case HVD_INT16:
    case HVD_FLOAT16:
    case HVD_BFLOAT16: return 2;
    case HVD_INT32:
    case HVD_FLOAT32: return 4;
    case HVD_INT64:
    case HVD_FLOAT64: return 8;
  }
  return 0;
}

const char *hvd_kernel_name(void) { return hvd::kernels().name; }

hvd_status hvd_reduce(hvd_dtype dtype, hvd_reduce_op op, double pre, double post, const void *const *in,
                      void *const *out, uint32_t n, uint64_t count) {
  if (!in || !out || n == 0 || hvd_dtype_bytes(dtype) == 0) return HVD_E_INVALID;
  const hvd::Job job{dtype, op, pre, post, in, out, n, count, nullptr};
  if (op == HVD_ADASUM) return reduce_adasum(job);
  return hvd::kernels().reduce(job) ? HVD_OK : HVD_E_INVALID;
}
}
