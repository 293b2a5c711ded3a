#include "metal.h"
#include "quant8.h"
