#define HVD_ISA avx2
#include "reduce_kernels.h"
