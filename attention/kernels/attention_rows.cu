#include "cuda.h"
#include "rows.h"
