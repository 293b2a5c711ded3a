#include "metal.h"
#include "pack.h"
