#include "metal.h"
#include "matrix_metal.h"
#include "attention.h"
