#include "cuda.h"
#include "remat.h"
