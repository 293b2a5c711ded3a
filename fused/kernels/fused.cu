#include "cuda.h"
#include "fused.h"
