// Kernels for processors with AVX-512 F, BW, DQ and VL; compiled with those flags, called only after a look at the processor.
#define HVD_ISA avx512
#define HVD_VECTOR_BYTES 64
#include "reduce_kernels.h"

#include "copy_kernels.h"

const hvd::Kernels hvd::avx512::kKernels = {"avx512", reduce, copy_lines};
