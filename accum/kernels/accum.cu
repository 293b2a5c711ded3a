#include "cuda.h"
#include "accum.h"
