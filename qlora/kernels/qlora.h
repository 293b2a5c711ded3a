// Kernels of package qlora. Each does what the Go function of its job does.
#pragma once
#include "quantize.h"
#include "dequantize.h"
#include "octets.h"
#include "few.h"
#include "products.h"
#include "dora.h"
