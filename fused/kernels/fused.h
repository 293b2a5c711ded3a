// Kernels of package fused. Each does what the Go function of its job does.
#pragma once
#include "elements.h"
#include "exp.h"

#include "activations.h"
#include "head.h"
#include "losssum.h"
#include "norms.h"
#include "norm_grads.h"
#include "route.h"
#include "sums.h"
#include "tokens.h"
