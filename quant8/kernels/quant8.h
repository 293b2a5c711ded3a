// Kernels of package quant8. Each does what the Go function of its job does.
#pragma once
#include "quantize.h"
#include "adamw.h"
#include "step.h"
#include "squares.h"
#include "matrix.h"
#include "scan.h"
#include "steps.h"
