#include "metal.h"
#include "rows.h"
