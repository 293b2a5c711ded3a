#include "metal.h"
#include "matrix_metal.h"
#include "conv.h"
