#include "cuda.h"
#include "matrix_cuda.h"
#include "hopper_cuda.h"
#include "hopper.h"
