#include "cuda.h"
#include "matrix_cuda.h"
#include "conv.h"
