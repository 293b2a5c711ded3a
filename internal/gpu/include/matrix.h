// Matrix units: products of 16×16 and 16×8 tiles of 16-bit numbers by the 32
// lanes of a warp, added in float. All lanes take part in every function. Included by matrix_cuda.h and matrix_metal.h,
// which define how.
//
//	FragA<T>  a 16×16 operand a        FragB<T>  a 16×8 operand b
//	Acc       a 16×8 result c, 4 floats of it in each lane: x[0] and x[1] lie
//	          in row acc_row(lane, 0), columns acc_col(lane) and the next one,
//	          x[2] and x[3] in row acc_row(lane, 1)
//
//	load_a(a, p, stride)             from rows of a: a[i][k] = p[i·stride + k]
//	load_a_transposed(a, p, stride)  from columns:   a[i][k] = p[k·stride + i]
//	load_b(b, p, stride)             two operands side by side, b[0] and b[1],
//	                                 from rows of b: b[k][j] = p[k·stride + j]
//	load_b_transposed(b, p, stride)  from columns:   b[k][j] = p[j·stride + k]
//	multiply(c, a, b)                c += a·b
//	acc_to_a(a, left, right)         a = [left right], rounded to T
//	row_sum(x), row_max(x)           over the lanes that share a row
//
// p lies in block memory; p and the rows from there on start at multiples of 16
// bytes.
//
//	copy_async(dst, src, there)  16 bytes from an operand to block memory, or 16
//	                             zero bytes if not there; both addresses are
//	                             multiples of 16
//	copy_async_commit()          ends a group of copies
//	copy_async_wait<N>()         waits for the thread's own copies but those of
//	                             its last N groups; sync_threads then shows them
//	                             to the block
#pragma once

enum { MATRIX_LANES = 32 };

DEVICE u32 matrix_lane(Thread t) { return t.local % MATRIX_LANES; }

// pair packs two numbers, the first in the lower half.
template <class T> DEVICE u32 pair(float x, float y) {
    return (u32)narrow<T>(x).bits | (u32)narrow<T>(y).bits << 16;
}

struct Acc { float x[4]; };
DEVICE Acc acc_zero() { return Acc{{0, 0, 0, 0}}; }

DEVICE float row_sum(float x) {
    x += shuffle_xor(x, ROW_LANES_0);
    return x + shuffle_xor(x, ROW_LANES_1);
}
DEVICE float row_max(float x) {
    x = maximum(x, shuffle_xor(x, ROW_LANES_0));
    return maximum(x, shuffle_xor(x, ROW_LANES_1));
}
