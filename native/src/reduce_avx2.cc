// Kernels for processors with AVX2 and F16C; compiled with those flags, called only after a look at the processor.
#define HVD_ISA avx2
#define HVD_VECTOR_BYTES 32
#include "reduce_kernels.h"

#include "copy_kernels.h"

const hvd::Kernels hvd::avx2::kKernels = {"avx2", reduce, copy_lines};
