#include "metal.h"
#include "conv.h"
