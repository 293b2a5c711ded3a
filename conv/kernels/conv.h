// Kernels of package conv. Each does what the Go function of its job does.
#pragma once
#include "elements.h"

#include "frame.h"
#include "pool.h"
#include "resize.h"
#include "weights.h"
