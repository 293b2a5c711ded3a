// Kernels of package attention. Forward and Backward are launches of them:
//
//	forward         a block owns a tile of queries: their out and lse
//	delta           a warp owns a row: dout · out
//	backward_query  a block owns a tile of queries: their dq
//	backward_key    a block owns a tile of keys: their dk and dv, over all query
//	                heads that read them
//
// Every result has one owner, which adds in the order of the tiles. units_*.h do
// the same on matrix units for 16-bit types and rows of up to 256 elements, and
// featured*.h with all that a Config may have besides a causal mask:
//
//	delta_features  a block owns a tile of queries: their delta, for gradients in a bias or
//	                in sinks
//	minus           takes the gradient in lse off delta
//	bias_features   a block owns a tile of the gradient in the bias
//	sinks           a block owns a head's gradient
//	forward_cached  forward with keys and values in a cache
//
// For few tiles of queries split_features, split_cached and split_unit are forward over one split
// of the keys, and join makes out and lse of what they leave; see split.h.
//
// merge and merge_backward are those of Merge and MergeBackward. attention_sm90a.cu has
// those of hopper*.h, for compute capability 9.0.
#pragma once
#include "forward.h"
#include "backward.h"
#include "featured_backward.h"
#include "featured_grads.h"
#include "cached.h"
#include "merge.h"
#if defined(HAS_F16_UNITS)
#include "units_entries.h"
#endif
