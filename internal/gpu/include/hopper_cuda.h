// Instructions of compute capability 9.0 (sm_90a) that copy tiles of tensors to
// block memory and multiply them there. Included after cuda.h and matrix_cuda.h, for
// CUDA only. The names are one instruction each, but for loops around waits, and the
// emulator has them as the PTX manual defines them.
//
// Block memory is named by u32 addresses, shared_address(room) + offset.
//
//	barriers, 8 bytes each, which count arrivals and bytes of copies: a phase ends
//	when both have come, and the next one begins
//	  barrier_init(b, count)        by one thread; barrier_init_done and then
//	                                sync_threads show it to all, copies included
//	  barrier_expect(b, bytes)      arrives, and says what copies will add
//	  barrier_arrive(b)
//	  barrier_wait(b, parity)       until the phase of that parity has ended; with 1
//	                                it passes at once in the first phase
//	copies, by one thread
//	  copy_box(to, map, column, row, head, batch, b)
//	                                a box of 64 columns of rows, 0 where there are
//	                                none. Row r is the 128 bytes from to + 128·r on;
//	                                its 16-byte pieces are permuted, see swizzled
//	products, by the 128 threads of a warpgroup: N columns of 64 rows, 16 terms each.
//	Accumulator 4·j + 2·h + e of a thread lies in row acc_row(lane, h) of its warp's
//	16 rows, column 8·j + acc_col(lane) + e.
//	  multiply_begin(x, …)          after registers of products were written, which are x:
//	                                sums that are added to, and fragments
//	  multiply_shared<T, N>(c, a, b, add)      c = a·b, added to c if add != 0; by rows
//	  multiply_registers<T, N>(c, a, b)        c += a·b, a as FragA, b by columns
//	  multiply_commit()             ends a group of products
//	  multiply_wait<n>()            until at most the last n groups are under way
//	  settled(c)                    after a wait, before c is read
#pragma once

enum {
    BOX_COLUMNS = 64,
    BOX_ROW = 128,       // bytes of a row of a box
    GROUP_THREADS = 128, // a warpgroup
    GROUP_ROWS = 64,     // of a product
};

// swizzled returns where the byte at an address of a box lies: bits 4 to 6 of the
// address are exchanged by bits 7 to 9, so that the same columns of 8 rows lie in
// different banks. Boxes start at multiples of 1024 bytes.
DEVICE u32 swizzled(u32 at) { return at ^ (at >> 7 & 7) << 4; }

// operand returns the descriptor of an operand in block memory: bits 0 to 13 are the
// address, 16 to 29 the leading and 32 to 45 the stride offset, all in units of 16 bytes,
// and 62 to 63 are 1 for rows that are permuted as above.
DEVICE u64 operand(u32 at, u32 leading, u32 stride) {
    return (u64)(at >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62;
}

// by_rows is an operand whose 16 terms are neighbours in its rows, those of columns of
// a box: 8 rows are 1024 bytes, and the leading offset is not used.
DEVICE u64 by_rows(u32 at) { return operand(at, 16, 8 * BOX_ROW); }

// by_columns is an operand whose 16 terms are rows of boxes that lie `box` bytes apart.
DEVICE u64 by_columns(u32 at, u32 box) { return operand(at, box, 8 * BOX_ROW); }

#if defined(SNUG_EMU)
#include "emu_hopper.h"
#else

struct alignas(64) TensorMap { u64 word[16]; };

#define MAP(name) const __grid_constant__ TensorMap name
#define KERNEL_OF_GROUPS(name, threads, ...) extern "C" __global__ __launch_bounds__(threads, 1) void name(__VA_ARGS__)
#define ROOM_OF_LAUNCH(name) extern __shared__ __align__(1024) u8 name[]

DEVICE void barrier_init(u32 b, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory"); }
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u32 b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
DEVICE void barrier_wait(u32 b, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred passed;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\n"
                 "@passed bra PASSED;\n"
                 "bra AGAIN;\n"
                 "PASSED:\n"
                 "}" ::"r"(b), "r"(parity) : "memory");
}

DEVICE void copy_box(u32 to, const TensorMap& map, i32 column, i32 row, i32 head, i32 batch, u32 b) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
                 "r"(to), "l"(&map), "r"(b), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}

// Named barriers of some of the block's threads: both count, sync waits for all.
DEVICE void named_sync(u32 number, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
DEVICE void named_arrive(u32 number, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

// A warpgroup gives registers back, or takes what others gave: n of each thread.
template <int n> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }

DEVICE float quick_max(float a, float b) { return fmaxf(a, b); }

// The compiler may move what it computes for a product beyond the fence, since the text of an
// instruction says nothing of registers that it does not name. ready names them.
template <u32 N> DEVICE void ready(float (&c)[N]) {
    UNROLL for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
template <class T, u32 N> DEVICE void ready(FragA<T> (&a)[N]) {
    UNROLL for (u32 i = 0; i < N; i++)
        UNROLL for (u32 r = 0; r < 4; r++) asm volatile("" : "+r"(a[i].x[r])::"memory");
}
template <class... X> DEVICE void multiply_begin(X&... x) {
    (ready(x), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> DEVICE void multiply_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory"); }

// The compiler does not know that products go on after their instruction: settled keeps
// it from reading their results before the wait that stands above.
template <u32 N> DEVICE void settled(float (&c)[N]) {
    UNROLL for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}

// Multiply is the instruction for N columns, with b by rows or, for a in registers, by columns.
template <class T, u32 N> struct Multiply;

#define ACC_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define ACC_8(c, i) ACC_4(c, i), ACC_4(c, i + 4)
#define ACC_16(c, i) ACC_8(c, i), ACC_8(c, i + 8)
#define ACC_32(c, i) ACC_16(c, i), ACC_16(c, i + 16)
#define ACC_64(c, i) ACC_32(c, i), ACC_32(c, i + 32)
#define NAMES_24 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_32 NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_40 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_48 NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64 NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_128                                                                                                        \
    NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89," \
             "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112," \
             "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// The numbers after the accumulators are those of the other operands.
#define MULTIPLY(T, NAME, N, NAMES, ACCS, O0, O1, O2, O3, O4, O5)                                                        \
    template <> struct Multiply<T, N> {                                                                                  \
        static DEVICE_MEMBER void shared(float (&c)[N / 2], u64 a, u64 b, u32 add) {                                     \
            asm volatile("{\n.reg .pred add;\nsetp.ne.u32 add, %" #O2 ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES "}, %" #O0 ", %" #O1 \
                         ", add, 1, 1, 0, 0;\n}"                                                                         \
                         : ACCS(c) : "l"(a), "l"(b), "r"(add));                                                             \
        }                                                                                                                \
        static DEVICE_MEMBER void registers(float (&c)[N / 2], const FragA<T>& a, u64 b) {                               \
            asm volatile("{\n.reg .pred add;\nsetp.ne.u32 add, %" #O5 ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES "}, {%" #O0 ", %" #O1 \
                         ", %" #O2 ", %" #O3 "}, %" #O4 ", add, 1, 1, 1;\n}"                                             \
                         : ACCS(c) : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "r"(1));                   \
        }                                                                                                                \
    };
#define MULTIPLY_BOTH(N, NAMES, ACCS, ...)               \
    MULTIPLY(bf16, "bf16", N, NAMES, ACCS, __VA_ARGS__) \
    MULTIPLY(f16, "f16", N, NAMES, ACCS, __VA_ARGS__)
#define ACCS_24(c) ACC_16(c, 0), ACC_8(c, 16)
#define ACCS_32(c) ACC_32(c, 0)
#define ACCS_40(c) ACC_32(c, 0), ACC_8(c, 32)
#define ACCS_48(c) ACC_32(c, 0), ACC_16(c, 32)
#define ACCS_64(c) ACC_64(c, 0)
#define ACCS_128(c) ACC_64(c, 0), ACC_64(c, 64)
MULTIPLY_BOTH(48, NAMES_24, ACCS_24, 24, 25, 26, 27, 28, 29)
MULTIPLY_BOTH(64, NAMES_32, ACCS_32, 32, 33, 34, 35, 36, 37)
MULTIPLY_BOTH(80, NAMES_40, ACCS_40, 40, 41, 42, 43, 44, 45)
MULTIPLY_BOTH(96, NAMES_48, ACCS_48, 48, 49, 50, 51, 52, 53)
MULTIPLY_BOTH(128, NAMES_64, ACCS_64, 64, 65, 66, 67, 68, 69)
MULTIPLY_BOTH(256, NAMES_128, ACCS_128, 128, 129, 130, 131, 132, 133)

template <class T, u32 N> DEVICE void multiply_shared(float (&c)[N / 2], u64 a, u64 b, u32 add) {
    Multiply<T, N>::shared(c, a, b, add);
}
template <class T, u32 N> DEVICE void multiply_registers(float (&c)[N / 2], const FragA<T>& a, u64 b) {
    Multiply<T, N>::registers(c, a, b);
}

#endif
