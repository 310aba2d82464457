#define HVD_ISA baseline
#include "reduce_kernels.h"
