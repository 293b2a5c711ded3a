#include "metal.h"
#include "remat.h"
