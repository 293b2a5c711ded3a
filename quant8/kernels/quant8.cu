#include "cuda.h"
#include "quant8.h"
