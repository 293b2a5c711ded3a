#include "cuda.h"
#include "qlora.h"
