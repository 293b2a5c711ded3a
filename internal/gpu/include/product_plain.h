// Products of any types and strides. A block of 256 threads keeps parts of a
// and b as float in block memory, line by line at each step of the depth, and
// every thread adds a square of 4×4.
#pragma once

struct alignas(16) Quad { float x[4]; };

// Dense is an operand in memory.
struct Dense {
    typedef Wide16 Raw;
    GLOBAL const u8* x;
    Strided s;

    // fetch returns the bits of 4 neighbours from element `at` on, zeros for those
    // that are not there. Nothing but the load itself happens here, so that it may
    // still be on its way while the thread multiplies.
    DEVICE_MEMBER Raw fetch(u64 at, u64 there) const {
        Wide16 y = {{0, 0, 0, 0}};
        bool wide = s.wide && there >= 4;
        if (s.type == TYPE_F32) {
            GLOBAL const u32* from = (GLOBAL const u32*)x + at;
            if (wide) return *(GLOBAL const Wide16*)from;
            UNROLL for (u32 e = 0; e < 4; e++)
                if (e < there) y.word[e] = from[e];
            return y;
        }
        GLOBAL const u16* from = (GLOBAL const u16*)x + at;
        if (wide) {
            Pack<u32, 2> both = load_pack<2>((GLOBAL const u32*)from);
            return Wide16{{both.x[0], both.x[1], 0, 0}};
        }
        UNROLL for (u32 e = 0; e < 4; e++)
            if (e < there) y.word[e / 2] |= (u32)from[e] << 16 * (e % 2);
        return y;
    }

    // decode makes floats of what fetch returned.
    DEVICE_MEMBER Quad decode(Raw w) const {
        Quad y;
        UNROLL for (u32 e = 0; e < 4; e++)
            y.x[e] = s.type == TYPE_F32 ? bits_float(w.word[e]) : widen16((u16)(w.word[e / 2] >> 16 * (e % 2)), s.type);
        return y;
    }
};

DEVICE Dense dense(GLOBAL const u8* x, Strided s) { return Dense{x, s}; }

// Panel is what thread number `self` holds of LINES lines and DEPTH steps of an
// operand, a Dense or something like it.
template <class S, int LINES, int DEPTH> struct Panel {
    enum { QUADS = LINES * DEPTH / 4 / 256, STRIDE = LINES + 4, RUN = DEPTH < 32 ? DEPTH / 4 : 8 };
    typename S::Raw quad[QUADS];

    // line and step say where quad i of the panel begins. Quads along lines come
    // in runs of RUN from each line, which the threads of a warp load together.
    static DEVICE_MEMBER u32 line(u32 i, bool along) { return along ? i / RUN % LINES : i % (LINES / 4) * 4; }
    static DEVICE_MEMBER u32 step(u32 i, bool along) {
        return along ? (i / (RUN * LINES) * RUN + i % RUN) * 4 : i / (LINES / 4);
    }

    // load begins to load the panel from line `first` of `lines` and step `from`
    // of `steps`.
    DEVICE_MEMBER void load(u32 self, PRIVATE const S& source, u64 first, u64 lines, u64 from, u64 steps) {
        Strided s = source.s;
        bool along = s.step == 1;
        UNROLL for (u32 q = 0; q < QUADS; q++) {
            u64 l = first + line(q * 256 + self, along), d = from + step(q * 256 + self, along);
            quad[q] = source.fetch(l * s.line + d * s.step, neighbours(l, lines, d, steps, along));
        }
    }

    // put writes the panel to block memory: line l of step d at to[d·STRIDE + l].
    DEVICE_MEMBER void put(u32 self, GROUP float* to, PRIVATE const S& source) const {
        bool along = source.s.step == 1;
        UNROLL for (u32 q = 0; q < QUADS; q++) {
            Quad y = source.decode(quad[q]);
            GROUP float* at = to + step(q * 256 + self, along) * STRIDE + line(q * 256 + self, along);
            if (along) {
                UNROLL for (u32 e = 0; e < 4; e++) at[e * STRIDE] = y.x[e];
            } else {
                *(GROUP Quad*)at = y;
            }
        }
    }
};

// store_slices adds the sums of all slices, each a tile by rows, and finishes
// the tile.
template <int ROWS, int COLS, int SLICES> DEVICE void store_slices(Thread t, Tile tile, GLOBAL u8* c, ProductParams p, GROUP const float* x) {
    for (u32 i = t.local * 2; i < ROWS * COLS; i += t.threads * 2) {
        float left = 0, right = 0;
        for (u32 s = 0; s < SLICES; s++) {
            left += x[s * ROWS * COLS + i];
            right += x[s * ROWS * COLS + i + 1];
        }
        store(c, p, tile.row + i / COLS, tile.col + i % COLS, left, right);
    }
}

// plain computes a tile of ROWS×COLS. Its threads form SLICES groups, each of
// which adds 16 of every 16·SLICES steps; in the end the groups' sums are added
// in order.
template <int ROWS, int COLS, int SLICES, class B>
DEVICE void plain(Thread t, Tile tile, GLOBAL u8* c, Dense a, B b, ProductParams p, GROUP Quad* memory) {
    enum { DEPTH = 16 * SLICES, ACROSS = COLS / 4, GROUP_THREADS = ROWS / 4 * ACROSS };
    typedef Panel<Dense, ROWS, DEPTH> PanelA;
    typedef Panel<B, COLS, DEPTH> PanelB;
    u32 slice = t.local / GROUP_THREADS, row = t.local % GROUP_THREADS / ACROSS * 4, col = t.local % ACROSS * 4;
    GROUP float* x = (GROUP float*)memory;
    GROUP float* y = x + DEPTH * PanelA::STRIDE;
    PanelA pa;
    PanelB pb;
    Quad sum[4];
    UNROLL for (u32 i = 0; i < 4; i++) sum[i] = Quad{{0, 0, 0, 0}};
    pa.load(t.local, a, tile.row, p.m, 0, p.k);
    pb.load(t.local, b, tile.col, p.n, 0, p.k);
    for (u64 at = 0; at < p.k; at += DEPTH) {
        pa.put(t.local, x, a);
        pb.put(t.local, y, b);
        sync_threads();
        pa.load(t.local, a, tile.row, p.m, at + DEPTH, p.k);
        pb.load(t.local, b, tile.col, p.n, at + DEPTH, p.k);
        GROUP const float* l = x + slice * 16 * PanelA::STRIDE + row;
        GROUP const float* r = y + slice * 16 * PanelB::STRIDE + col;
        for (u32 d = at + slice * 16 < p.k ? 16 : 0; d > 0; d -= 4)
            UNROLL for (u32 e = 0; e < 4; e++, l += PanelA::STRIDE, r += PanelB::STRIDE) {
                Quad left = *(GROUP const Quad*)l, right = *(GROUP const Quad*)r;
                UNROLL for (u32 i = 0; i < 4; i++)
                    UNROLL for (u32 j = 0; j < 4; j++) sum[i].x[j] = fused_mul_add(left.x[i], right.x[j], sum[i].x[j]);
            }
        sync_threads();
    }
    UNROLL for (u32 i = 0; i < 4; i++) memory[(slice * ROWS + row + i) * ACROSS + col / 4] = sum[i];
    sync_threads();
    store_slices<ROWS, COLS, SLICES>(t, tile, c, p, x);
    sync_threads();
}

// plain_square computes a tile of SIDE×SIDE in parts of 64×64.
template <int SIDE, class B> DEVICE void plain_square(Thread t, GLOBAL u8* c, Dense a, B b, ProductParams p, GROUP Quad* memory) {
    Tile tile = tile_of(t.block, p.m, p.n, SIDE, SIDE);
    for (u32 row = 0; row < SIDE; row += 64)
        for (u32 col = 0; col < SIDE; col += 64)
            plain<64, 64, 1>(t, Tile{tile.row + row, tile.col + col}, c, a, b, p, memory);
}
