// Convolutions of 16-bit types as products by matrix units. What tile.h computes with float in block memory, a tile here computes of
// the elements themselves. Block memory has two buffers: threads fill one while warps multiply the other.
#pragma once

// Bits of Source.wide: the elements that a thread brings of an operand are 8 neighbours at a multiple of 16 bytes, see wide in gpu_conv.go.
enum : u32 { WIDE_LEFT = 1, WIDE_RIGHT = 2 };

// Units is a tile of 64×64, whose 8 warps form 2 rows of 4. In a buffer the rows of the left operand, or the columns of the right one,
// lie along the depth or across it, as in memory.
template <class T> struct Units {
    enum {
        DEPTH = 32,
        SLICES = 1,
        SIDE = 64,
        LEFT = SIDE + 4, // floats of the result
        RIGHT = SIDE + 4,
        ALONG = DEPTH + 8, // elements from a row to the next
        ACROSS = SIDE + 8, // elements from a step to the next
        PANEL = SIDE * ALONG > DEPTH * ACROSS ? SIDE * ALONG : DEPTH * ACROSS,
        BUFFERS = 4 * PANEL / 8, // in 16 bytes
        RESULTS = SIDE * RIGHT / 4,
        ROOM = BUFFERS > RESULTS ? BUFFERS : RESULTS,
    };

    // Elements are those that a thread brings one by one.
    struct Elements { T left[8], right[8]; };

    static DEVICE_MEMBER u32 at(bool across, u32 line, u32 step) { return across ? step * ACROSS + line : line * ALONG + step; }

    // line_of and step_of are the place of element i of those that a thread brings of an operand one by one: across the depth they share
    // a line, along it a step.
    static DEVICE_MEMBER u32 line_of(bool across, u32 self, u32 i) { return across ? self % SIDE : self / DEPTH + i * (256 / DEPTH); }
    static DEVICE_MEMBER u32 step_of(bool across, u32 self, u32 i) { return across ? self / SIDE + i * (256 / SIDE) : self % DEPTH; }

    static DEVICE_MEMBER T left_of(PRIVATE const Source<T>& s, u32 row, u32 other) {
        T x = T{0};
        if (row < s.rows && other != NONE) x = s.left[row * s.row + other];
        return x;
    }

    static DEVICE_MEMBER T right_of(PRIVATE const Source<T>& s, Line line, Step at) {
        T x = narrow<T>(line.fill);
        if (is_inside(s, line, at)) x = s.right[line.at + at.at];
        return x;
    }

    // begin begins to bring the elements of DEPTH steps to a buffer.
    static DEVICE_MEMBER void begin(u32 self, PRIVATE const Source<T>& s, u32 row, GROUP const Line* lines, GROUP const Step* steps, GROUP T* to,
                                    PRIVATE Elements& own) {
        bool across = s.row == 1;
        if (s.wide & WIDE_LEFT) {
            u32 r = across ? self % (SIDE / 8) * 8 : self / (DEPTH / 8), k = across ? self / (SIDE / 8) : self % (DEPTH / 8) * 8;
            u32 other = steps[k].other;
            bool there = row + r < s.rows && other != NONE;
            copy_async(to + at(across, r, k), there ? s.left + ((row + r) * s.row + other) : s.left, there);
        } else if (across) {
            UNROLL for (u32 i = 0; i < 8; i++) own.left[i] = left_of(s, row + line_of(true, self, 0), steps[step_of(true, self, i)].other);
        } else {
            u32 other = steps[step_of(false, self, 0)].other;
            UNROLL for (u32 i = 0; i < 8; i++) own.left[i] = left_of(s, row + line_of(false, self, i), other);
        }
        to += PANEL;
        across = s.lanes != 0;
        if (s.wide & WIDE_RIGHT) {
            u32 l = across ? self % (SIDE / 8) * 8 : self / (DEPTH / 8), k = across ? self / (SIDE / 8) : self % (DEPTH / 8) * 8;
            Step step = steps[k];
            Line line = lines[l];
            if (across && lines[l + 7].place == NONE) { // the last lines, which may be fewer, or the bias's
                UNROLL_1 for (u32 e = 0; e < 8; e++) to[at(true, l + e, k)] = right_of(s, lines[l + e], step);
            } else {
                bool there = is_inside(s, line, step);
                copy_async(to + at(across, l, k), there ? s.right + (line.at + step.at) : s.right, there);
            }
        } else if (across) {
            Line line = lines[line_of(true, self, 0)];
            UNROLL for (u32 i = 0; i < 8; i++) own.right[i] = right_of(s, line, steps[step_of(true, self, i)]);
        } else {
            Step step = steps[step_of(false, self, 0)];
            UNROLL for (u32 i = 0; i < 8; i++) own.right[i] = right_of(s, lines[line_of(false, self, i)], step);
        }
        copy_async_commit();
    }

    // end stores what begin did not copy.
    static DEVICE_MEMBER void end(u32 self, PRIVATE const Source<T>& s, GROUP T* to, PRIVATE const Elements& own) {
        bool across = s.row == 1;
        if (!(s.wide & WIDE_LEFT)) {
            UNROLL for (u32 i = 0; i < 8; i++) to[at(across, line_of(across, self, i), step_of(across, self, i))] = own.left[i];
        }
        to += PANEL;
        across = s.lanes != 0;
        if (!(s.wide & WIDE_RIGHT)) {
            UNROLL for (u32 i = 0; i < 8; i++) to[at(across, line_of(across, self, i), step_of(across, self, i))] = own.right[i];
        }
    }

    // product is that of Shape.
    template <class F>
    static DEVICE_MEMBER void product(Thread t, PRIVATE const Source<T>& s, PRIVATE const F& f, u32 row, u32 first, u32 depth, GROUP const Line* lines,
                                      GROUP Step* steps, GROUP Quad* memory) {
        const u32 self = t.local;
        u32 warp = self / MATRIX_LANES, r = warp / 4 * 32, c = warp % 4 * 16, stages = (depth + DEPTH - 1) / DEPTH;
        GROUP T* buffers = (GROUP T*)memory;
        Acc sum[4];
        UNROLL for (u32 i = 0; i < 4; i++) sum[i] = acc_zero();
        if (self < 2 * DEPTH) {
            Step step = f.step(first + self, self < depth);
            steps[self] = step;
        }
        sync_threads();
        Elements own;
        begin(self, s, row, lines, steps, buffers, own);
        end(self, s, buffers, own);
        UNROLL_1 for (u32 stage = 0; stage < stages; stage++) {
            copy_async_wait<0>();
            sync_threads();
            GROUP T* x = buffers + stage % 2 * 2 * PANEL;
            GROUP T* next = buffers + (2 * PANEL - stage % 2 * 2 * PANEL);
            bool more = stage + 1 < stages;
            if (more) begin(self, s, row, lines, steps + (DEPTH - stage % 2 * DEPTH), next, own);
            u32 after = (stage + 2) * DEPTH + self;
            if (self < DEPTH && stage + 2 < stages) {
                Step step = f.step(first + after, after < depth);
                steps[stage % 2 * DEPTH + self] = step;
            }
            multiply_panels(x, s.row == 1, s.lanes != 0, r, c, sum);
            if (more) end(self, s, next, own);
        }
        copy_async_wait<0>();
        sync_threads();
        GROUP float* out = (GROUP float*)memory;
        u32 lane = matrix_lane(t);
        UNROLL for (u32 i = 0; i < 2; i++)
            UNROLL for (u32 j = 0; j < 2; j++)
                UNROLL for (u32 e = 0; e < 4; e++)
                    out[(r + 16 * i + acc_row(lane, e / 2)) * RIGHT + c + 8 * j + acc_col(lane) + e % 2] = sum[2 * i + j].x[e];
        sync_threads();
    }

    // multiply_panels adds the product of a buffer's panels: the 32 rows from r on by the 16 columns from c on.
    static DEVICE_MEMBER void multiply_panels(GROUP const T* x, bool left, bool right, u32 r, u32 c, PRIVATE Acc* sum) {
        GROUP const T* y = x + PANEL;
        UNROLL for (u32 d = 0; d < DEPTH; d += 16) {
            FragA<T> a[2];
            FragB<T> b[2];
            UNROLL for (u32 i = 0; i < 2; i++) {
                if (left) load_a_transposed(a[i], x + at(true, r + 16 * i, d), ACROSS);
                else load_a(a[i], x + at(false, r + 16 * i, d), ALONG);
            }
            if (right) load_b(b, y + at(true, c, d), ACROSS);
            else load_b_transposed(b, y + at(false, c, d), ALONG);
            UNROLL for (u32 i = 0; i < 2; i++)
                UNROLL for (u32 j = 0; j < 2; j++) multiply(sum[2 * i + j], a[i], b[j]);
        }
    }
};
