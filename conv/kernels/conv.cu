#include "cuda.h"
#include "conv.h"
