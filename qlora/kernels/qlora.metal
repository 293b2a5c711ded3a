#include "metal.h"
#include "qlora.h"
