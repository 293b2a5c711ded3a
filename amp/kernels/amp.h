// Kernels of package amp. Each does what the Go function of its job does.
#pragma once
#include "cast.h"
#include "split.h"
#include "split24.h"
#include "sweep.h"
