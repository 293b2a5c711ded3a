// What a Config may have besides a causal mask: kernels of their own, for one launch
// of at most SEQUENCES sequences, take all of it.
#pragma once
#include "any.h"
#include "logarithm.h"
#include "tanh.h"

#if defined(SNUG_METAL)
#define CONSTANT constant
#else
#define CONSTANT const
#endif

enum { SEQUENCES = 64 };

enum { SUNK_HEAD = 1, SUNK_ROW = 2 };

// Extent is the rows of one sequence.
struct Extent { i64 q0, nq, k0, nk; };

// Features is the parameters of a launch, as gpu_features.go fills them in.
struct Features {
    Shape shape;
    u64 first;       // number of the launch's first sequence
    u64 sequences;   // of the launch
    i64 left, right; // keys before and behind a query's position that it sees
    u64 slopes;      // how many
    u64 bias[4];     // strides
    u64 dims[4];     // of the bias
    u64 mask_batch, mask_head, mask_row; // tiles from one to the next
    u64 seed, query, key;                // of dropout
    u64 page, pages, table;              // of a cache: rows of a page or 0; how many; entries of a sequence
    Extent of[SEQUENCES];                // unless all sequences are alike
    u32 type;           // of all tensors, but
    u32 type_k, type_v; // those of a cache
    u32 bias_type;      // 0: none
    u32 unlike, packed; // sequences
    u32 ends;           // the last query has the position of the last key
    u32 scores;         // are more than scale times products
    u32 masked, dropout;
    u32 sunk;           // SUNK_HEAD: each head has a sink; SUNK_ROW: each row of a tile, which is a head of one query; 0: none
    u32 below;          // words below it leave a weight out
    u32 more;           // add to the gradient in a bias of all sequences that an earlier launch began
    u32 splits;         // of the keys that a tile of queries sees, for kernels of splits
    f32 keep; // what the weights are multiplied by that dropout keeps
    f32 softcap;
};

// Extras is the operands of features.
struct Extras {
    GLOBAL const f32 *slopes, *sinks;
    GLOBAL const u8* bias;
    GLOBAL const i32* tiles; // of the mask
    GLOBAL const u64* words;
};

// Sequence is one element of the batch, as the Go type.
struct Sequence {
    u64 b, batch; // its number; its number in tensors
    i64 q0, nq, k0, nk, rows;
    i64 shift;
};

// sequence_of returns number n of a launch.
DEVICE Sequence sequence_of(CONSTANT Features& p, u64 n) {
    u64 b = p.first + n;
    Sequence s = {b, p.packed ? 0 : b, 0, p.shape.seq_q, 0, p.shape.seq_k, p.shape.seq_k, p.shape.shift};
    if (p.unlike) {
        s.q0 = p.of[n].q0, s.nq = p.of[n].nq, s.k0 = p.of[n].k0, s.nk = p.of[n].nk;
        s.rows = p.packed ? s.nk : s.rows - s.k0;
    }
    if (p.ends) s.shift = s.nk - s.nq;
    return s;
}

DEVICE i64 between(i64 x, i64 lo, i64 hi) { return greatest(lo, least(x, hi)); }

// first_key and end_key are the range of keys that query i sees. Both grow with i.
DEVICE i64 first_key(CONSTANT Features& p, GROUP const Sequence& s, i64 i) { return between(i + s.shift - p.left, 0, s.nk); }
DEVICE i64 end_key(CONSTANT Features& p, GROUP const Sequence& s, i64 i) { return between(i + s.shift + p.right + 1, 0, s.nk); }

// from_query and end_query are the range of queries that see key j.
DEVICE i64 from_query(CONSTANT Features& p, GROUP const Sequence& s, i64 j) {
    return j < s.nk ? between(j - p.right - s.shift, 0, s.nq) : s.nq;
}
DEVICE i64 end_query(CONSTANT Features& p, GROUP const Sequence& s, i64 j) {
    return j < s.nk ? between(j + 1 + p.left - s.shift, 0, s.nq) : 0;
}

// Head is one query head of a sequence. It lies in block memory, since registers are
// few.
struct Head {
    Sequence s;
    u64 h;
    i64 q0; // of the block's tile, if it owns one of queries
    f32 slope;
    u64 bias;                // element of query 0 and key 0
    GLOBAL const i32* tiles; // of its mask
};

// load_head makes head that of a sequence of the launch.
DEVICE void load_head(Thread t, GROUP Head* head, CONSTANT Features& p, u64 n, u64 h, i64 q0, Extras x) {
    sync_threads(); // all have read what was there
    if (t.local == 0) {
        Sequence s = sequence_of(p, n);
        f32 slope = p.slopes ? x.slopes[(s.b * p.shape.heads + h) % p.slopes] : 0;
        *head = Head{s, h, q0, slope, s.b * p.bias[0] + h * p.bias[1], x.tiles + (s.b * p.mask_batch + h * p.mask_head)};
    }
    sync_threads();
}

// row_of returns the number of a query among all of them, as in lse.
DEVICE u64 row_of(CONSTANT Features& p, GROUP const Head& head, i64 i) {
    return row_number(p.shape, head.s.batch, head.h, head.s.q0 + i);
}

// query_rows and key_rows return the rows of a tile.
DEVICE AnyRows query_rows(CONSTANT Features& p, GLOBAL const u8* x, Strides st, GROUP const Head& head, i64 first, u32 dim) {
    return any_rows((GLOBAL u8*)x, p.type, st, head.s.batch, head.h, head.s.q0 + first, head.s.q0 + head.s.nq, dim);
}
DEVICE AnyRows key_rows(CONSTANT Features& p, GLOBAL const u8* x, Strides st, GROUP const Sequence& s, u64 h, i64 first, u32 dim) {
    return any_rows((GLOBAL u8*)x, p.type, st, s.batch, h, s.k0 + first, s.k0 + s.rows, dim);
}

// ---- which scores count

// span returns bits lo to hi-1, of those that there are.
DEVICE u64 span(i64 lo, i64 hi) {
    lo = between(lo, 0, TILE), hi = between(hi, 0, TILE);
    return hi > lo ? ~(u64)0 >> (u32)(TILE - (hi - lo)) << (u32)lo : 0;
}

// Tiles of a mask: nothing is seen, all, or what the words of the tile say.
enum { HIDDEN = 0, SEEN = 1, PARTIAL = 2 };

// tile_of returns that of a mask which has queries from q0 on and keys from k0 on.
DEVICE i32 tile_of(CONSTANT Features& p, GROUP const Head& head, i64 q0, i64 k0) {
    return p.masked ? head.tiles[(u64)(q0 / TILE) * p.mask_row + (u64)(k0 / TILE)] : SEEN;
}

DEVICE GLOBAL const u64* words_of(Extras x, i32 tile) { return x.words + (u64)(tile - PARTIAL) * TILE; }

// seen_keys returns which keys, from k0 on, the thread's queries see. Queries that
// there are not see none.
DEVICE SeenBits seen_keys(Thread t, CONSTANT Features& p, GROUP const Head& head, Extras x, i32 tile, i64 q0, i64 k0) {
    SeenBits seen;
    UNROLL for (u32 r = 0; r < 4; r++) {
        i64 i = q0 + row_at(t) + r;
        seen.row[r] = i < head.s.nq ? span(first_key(p, head.s, i) - k0, end_key(p, head.s, i) - k0) : 0;
        if (tile >= PARTIAL) seen.row[r] &= words_of(x, tile)[row_at(t) + r];
    }
    return seen;
}

// Bits is a bit for every query and key of a tile, or key and query: 16 in a piece,
// four of which are a row.
enum { BITS = TILE * 4 };

DEVICE bool has(GROUP const u16* bits, u32 row, u32 column) { return (bits[row * 4 + column / 16] >> column % 16 & 1) != 0; }

// turn_words fills bits with a row for every key of what a tile's words say. A thread
// makes a piece.
DEVICE void turn_words(Thread t, GROUP u16* bits, GLOBAL const u64* words) {
    u32 key = t.local / 4, from = t.local % 4 * 16, piece = 0;
    for (u32 i = 0; i < 16; i++) piece |= (u32)(words[from + i] >> key & 1) << i;
    bits[t.local] = (u16)piece;
}

// seen_queries returns which queries, from q0 on, see the thread's keys. bits are of
// turn_words.
DEVICE SeenBits seen_queries(Thread t, CONSTANT Features& p, GROUP const Sequence& s, GROUP const u16* bits, i32 tile, i64 k0, i64 q0) {
    SeenBits seen;
    UNROLL for (u32 r = 0; r < 4; r++) {
        i64 j = k0 + row_at(t) + r;
        seen.row[r] = span(from_query(p, s, j) - q0, end_query(p, s, j) - q0);
        if (tile < PARTIAL) continue;
        u64 word = 0;
        for (u32 i = 0; i < 4; i++) word |= (u64)bits[(row_at(t) + r) * 4 + i] << 16 * i;
        seen.row[r] &= word;
    }
    return seen;
}

// draw fills kept with a row for every query of what dropout keeps, see Dropout in Go.
// A thread makes a piece.
DEVICE void draw(Thread t, CONSTANT Features& p, GROUP u16* kept, GROUP const Head& head, i64 q0, i64 k0) {
    u64 number = ((p.query + (u64)q0 + t.local / 4) << 32) + p.key + (u64)k0 + t.local % 4 * 16;
    u32 piece = 0;
    Words4 r = Words4{};
    for (u32 i = 0; i < 16; i++, number++) {
        u32 word = (u32)number % 4;
        if (i == 0 || word == 0) r = philox(p.seed, head.s.b * p.shape.heads + head.h, number / 4);
        u32 x = word < 2 ? (word == 0 ? r.word[0] : r.word[1]) : (word == 2 ? r.word[2] : r.word[3]);
        piece |= (x >= p.below ? 1u : 0u) << i;
    }
    kept[t.local] = (u16)piece;
}

// ---- scores

// Score is a score in units of log 2, and the derivative of the score in the product.
struct Score { f32 x, slope; };

// Tile is where the scores of a query q0 and a key k0 and of those after them lie: how far
// from its own position the key is for the query, and the element of the bias.
struct Tile {
    i64 far;
    u64 bias;
};

DEVICE Tile tile_at(CONSTANT Features& p, GROUP const Head& head, i64 q0, i64 k0) {
    return Tile{q0 + head.s.shift - k0, head.bias + (u64)q0 * p.bias[2] + (u64)k0 * p.bias[3]};
}

// score_of makes a score of the product of query i and key j of a tile.
DEVICE Score score_of(CONSTANT Features& p, float slope_of, Tile at, Extras extra, float product, u32 i, u32 j) {
    if (!p.scores) return Score{product * p.shape.scale2, p.shape.scale};
    float x = product * p.shape.scale, slope = p.shape.scale;
    if (p.softcap != 0) {
        float tanh = tanh_of(x / p.softcap);
        x = p.softcap * tanh, slope *= 1 - tanh * tanh;
    }
    if (p.slopes) {
        i64 far = at.far + (i32)(i - j);
        x -= slope_of * (float)greatest(far, -far);
    }
    if (p.bias_type) x += any_at(extra.bias, p.bias_type, at.bias + i * p.bias[2] + j * p.bias[3]);
    return Score{x * 1.44269502f, slope};
}
