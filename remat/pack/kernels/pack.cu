#include "cuda.h"
#include "pack.h"
