#include "cuda.h"
#if !defined(__HIP__)
#include "matrix_cuda.h"
#include "hopper_cuda.h"
#include "hopper_backward_key.h"

// The numbers are groups that multiply, rows of the tiles that pass through block memory, and
// registers of a thread of the group that copies and of one that multiplies: a block has
// 65,536. gpu_hopper.go has the first two.
#define HOPPER_ENTRIES(T)                         \
    HOPPER_FORWARD(T, 64, 3, 128, 32, 160)        \
    HOPPER_FORWARD(T, 128, 2, 128, 24, 240)       \
    HOPPER_FORWARD(T, 256, 2, 80, 24, 240)        \
    HOPPER_BACKWARD_QUERY(T, 64, 2, 128, 24, 240) \
    HOPPER_BACKWARD_QUERY(T, 128, 2, 96, 24, 240) \
    HOPPER_BACKWARD_QUERY(T, 256, 2, 48, 24, 240) \
    HOPPER_BACKWARD_KEY(T, 64, 2, 96, 24, 240)    \
    HOPPER_BACKWARD_KEY(T, 128, 2, 64, 24, 240)   \
    HOPPER_BACKWARD_KEY(T, 256, 2, 64, 24, 240)
HOPPER_ENTRIES(f16)
HOPPER_ENTRIES(bf16)
#endif
