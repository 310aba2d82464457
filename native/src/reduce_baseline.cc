// Kernels for any processor of the platform: x86-64 with SSE2, or whatever the compiler makes of 16-byte vectors elsewhere.
#define HVD_ISA baseline
#define HVD_VECTOR_BYTES 16
#include "reduce_kernels.h"

#include "copy_kernels.h"

const hvd::Kernels hvd::baseline::kKernels = {"baseline", reduce, copy_lines};
