#include "cuda.h"
#include "amp.h"
