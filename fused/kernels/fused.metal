#include "metal.h"
#include "fused.h"
