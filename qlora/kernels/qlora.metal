#include "metal.h"
#include "matrix_metal.h"
#include "qlora.h"
