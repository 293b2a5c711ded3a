#include "metal.h"
#include "amp.h"
