// Chooses the kernels once, by what the processor has and HVD_SIMD allows.
#include "reduce.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

struct Kernels {
  const char *name;
  bool (*reduce)(const hvd::Job &);
};

Kernels choose() {
  const char *wish = std::getenv("HVD_SIMD");
  auto allowed = [wish](const char *name) { return !wish || !*wish || std::strcmp(wish, name) == 0; };
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  bool half = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (wide && half && allowed("avx512")) return {"avx512", hvd::avx512::reduce};
  if (half && allowed("avx2")) return {"avx2", hvd::avx2::reduce};
#else
  (void)allowed;
#endif
  return {"baseline", hvd::baseline::reduce};
}

const Kernels &kernels() {
  static const Kernels chosen = choose();
  return chosen;
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

const char *hvd_kernel_name(void) { return kernels().name; }

hvd_status hvd_reduce(hvd_dtype dtype, hvd_reduce_op op, double pre, double post, const void *const *in,
                      void *const *out, uint32_t n, uint64_t count) {
  if (!in || !out || n == 0 || hvd_dtype_bytes(dtype) == 0) return HVD_E_INVALID;
  try {
    return kernels().reduce({dtype, op, pre, post, in, out, n, count}) ? HVD_OK : HVD_E_INVALID;
  } catch (const std::bad_alloc &) {
    return HVD_E_MEMORY;
  }
}
}
