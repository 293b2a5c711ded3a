// Convolutions as products of matrices whose right operand is gathered: a block of 256 threads keeps parts of both as float in block
// memory, and every thread adds a square of 4×4, as in product_plain.h.
//
// The right operand has a column, here a line, for each position of the result and a row, here a step, for each tap of a channel (in
// the gradient of weights it is the other way round). Both have an offset in memory and coordinates z, y and x. The sum of both offsets
// is where the element of line and step lies, and the sums of the coordinates say whether it lies inside of the image.
#pragma once

struct alignas(16) Quad { float x[4]; };

enum : u32 { NONE = 0xffffffffu };
enum : i32 { NOWHERE = -(1 << 30) }; // a coordinate that is outside of every image

// Line is a column of the product.
struct Line {
    u32 at;    // offset in the right operand, in elements
    u32 place; // where its result goes, or NONE
    i32 z, y, x;
    f32 fill; // value of an element outside of the image
};

// Step is a step of the depth.
struct Step {
    u32 at;    // offset in the right operand, in elements
    u32 other; // offset in a row of the left operand; NONE beyond the depth
    i32 z, y, x;
};

// Source is what the operands lie in.
template <class T> struct Source {
    GLOBAL const T* left;
    u32 row, rows; // elements from one row to the next, and the number of rows
    GLOBAL const T* right;
    i32 z, y, x;  // size of its images
    u32 lanes;    // 1: neighbouring lines lie side by side in memory; 0: neighbouring steps do
    u32 wide;     // see units.h
};

template <class T> DEVICE float left_value(PRIVATE const Source<T>& s, u32 row, Step at) {
    return row < s.rows && at.other != NONE ? widen(s.left[row * s.row + at.other]) : 0.0f;
}

template <class T> DEVICE bool is_inside(PRIVATE const Source<T>& s, Line line, Step at) {
    return (u32)(line.z + at.z) < (u32)s.z && (u32)(line.y + at.y) < (u32)s.y && (u32)(line.x + at.x) < (u32)s.x;
}

template <class T> DEVICE float right_value(PRIVATE const Source<T>& s, Line line, Step at) {
    return is_inside(s, line, at) ? widen(s.right[line.at + at.at]) : line.fill;
}

// A block computes ROWS×COLS of the product. Its threads form SLICES groups, each of which adds 16 of every 16·SLICES steps; in the
// end the groups' sums are added in order.
template <int ROWS, int COLS, int GROUPS> struct Shape {
    enum {
        SLICES = GROUPS,
        DEPTH = 16 * SLICES,
        ACROSS = COLS / 4,
        TEAM = ROWS / 4 * ACROSS, // threads of a group
        LEFT = ROWS + 4,          // floats from a step to the next, so that rows fall into different banks
        RIGHT = COLS + 4,
        LOADS_LEFT = ROWS * DEPTH / 256,
        LOADS_RIGHT = COLS * DEPTH / 256,
        PANELS = DEPTH * (LEFT + RIGHT) / 4,
        RESULTS = SLICES * ROWS * RIGHT / 4,
        ROOM = PANELS > RESULTS ? PANELS : RESULTS, // quads of block memory
    };

    // product leaves the products of depth steps in block memory: row r, column c at r·RIGHT + c. f.step(k) describes a step. lines
    // are those of the tile, steps has room for two times DEPTH. All threads come with lines set, and the barrier behind them.
    template <class T, class F>
    static DEVICE_MEMBER void product(Thread t, PRIVATE const Source<T>& s, PRIVATE const F& f, u32 row, u32 first, u32 depth, GROUP const Line* lines,
                             GROUP Step* steps, GROUP Quad* memory) {
        const u32 D = DEPTH, self = t.local;
        u32 group = self / TEAM, r = self % TEAM / ACROSS * 4, c = self % ACROSS * 4;
        u32 along = s.lanes ? self % (RIGHT - 4) : self / D, k0 = s.lanes ? self / (RIGHT - 4) : self % D;
        u32 nextLine = s.lanes ? 0 : 256 / D, nextStep = s.lanes ? 256 / (RIGHT - 4) : 0;
        GROUP float* x = (GROUP float*)memory;
        GROUP float* y = x + D * LEFT;
        float left[LOADS_LEFT], right[LOADS_RIGHT];
        Quad sum[4];
        UNROLL for (u32 i = 0; i < 4; i++) sum[i] = Quad{{0, 0, 0, 0}};
        u32 stages = (depth + D - 1) / D;
        UNROLL_1 for (u32 i = self; i < 2 * D; i += 256) {
            Step step = f.step(first + i, i < depth);
            steps[i] = step;
        }
        sync_threads();
        UNROLL for (u32 i = 0; i < LOADS_LEFT; i++) left[i] = left_value(s, row + self / D + i * (256 / D), steps[self % D]);
        UNROLL for (u32 i = 0; i < LOADS_RIGHT; i++)
            right[i] = right_value(s, lines[along + i * nextLine], steps[k0 + i * nextStep]);
        UNROLL_1 for (u32 stage = 0; stage < stages; stage++) {
            UNROLL for (u32 i = 0; i < LOADS_LEFT; i++) x[self % D * LEFT + self / D + i * (256 / D)] = left[i];
            UNROLL for (u32 i = 0; i < LOADS_RIGHT; i++) y[(k0 + i * nextStep) * RIGHT + along + i * nextLine] = right[i];
            sync_threads();
            u32 now = stage % 2 * D, next = D - now;
            if (stage + 1 < stages) {
                UNROLL for (u32 i = 0; i < LOADS_LEFT; i++)
                    left[i] = left_value(s, row + self / D + i * (256 / D), steps[next + self % D]);
                UNROLL for (u32 i = 0; i < LOADS_RIGHT; i++)
                    right[i] = right_value(s, lines[along + i * nextLine], steps[next + k0 + i * nextStep]);
            }
            u32 after = (stage + 2) * D + self;
            if (self < D && stage + 2 < stages) {
                Step step = f.step(first + after, after < depth);
                steps[now + self] = step;
            }
            GROUP const float* l = x + group * 16 * LEFT + r;
            GROUP const float* m = y + group * 16 * RIGHT + c;
            UNROLL_1 for (u32 d = stage * D + group * 16 < depth ? 16 : 0; d > 0; d -= 4)
                UNROLL for (u32 e = 0; e < 4; e++, l += LEFT, m += RIGHT) {
                    Quad a = *(GROUP const Quad*)l, b = *(GROUP const Quad*)m;
                    UNROLL for (u32 i = 0; i < 4; i++)
                        UNROLL for (u32 j = 0; j < 4; j++) sum[i].x[j] = fused_mul_add(a.x[i], b.x[j], sum[i].x[j]);
                }
            sync_threads();
        }
        const u32 rows = LEFT - 4;
        UNROLL for (u32 i = 0; i < 4; i++) memory[((group * rows + r + i) * RIGHT + c) / 4] = sum[i];
        sync_threads();
    }
};

// tile_sum returns an element of the product.
template <class S> DEVICE float tile_sum(GROUP const Quad* memory, u32 row, u32 col) {
    GROUP const float* x = (GROUP const float*)memory;
    const u32 slices = S::SLICES, rows = S::LEFT - 4;
    float sum = 0;
    UNROLL for (u32 i = 0; i < slices; i++) sum += x[(i * rows + row) * S::RIGHT + col];
    return sum;
}

// SquareOf is the large tile for a type: of matrix units where the language has them for it.
template <class T> struct SquareOf { typedef Shape<64, 64, 1> Tile; };

#if defined(HAS_F16_UNITS)
#include "units.h"
template <> struct SquareOf<f16> { typedef Units<f16> Tile; };
#if defined(HAS_BF16_UNITS)
template <> struct SquareOf<bf16> { typedef Units<bf16> Tile; };
#endif
#endif
