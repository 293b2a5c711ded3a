#include "cuda.h"
#include "ortho.h"
