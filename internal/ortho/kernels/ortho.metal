#include "metal.h"
#include "ortho.h"
