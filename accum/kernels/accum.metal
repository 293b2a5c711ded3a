#include "metal.h"
#include "accum.h"
