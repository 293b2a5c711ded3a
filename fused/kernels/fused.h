// Kernels of package fused. Each does what the Go function of its job does.
#pragma once
#include "elements.h"
#include "exp.h"

#include "activations.h"
#include "activate.h"
#include "head.h"
#include "losses.h"
#include "losssum.h"
#include "image_norms.h"
#include "channel_norm.h"
#include "norms.h"
#include "norm_grads.h"
#include "route.h"
#include "sums.h"
#include "tokens.h"
