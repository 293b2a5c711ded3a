// What a launch is told, and where the tiles of a block lie.
#pragma once

// Strides are Go's, in elements.
struct Strides { u64 batch, head, row; };

// Shape is a resolved Config, as gpu.go fills it in.
struct Shape {
    u64 items; // tiles of all heads
    u64 rows;  // queries of all heads
    u64 heads, kv_heads, group;
    i64 seq_q, seq_k;
    i64 shift; // how far a query sees beyond the key of its own number
    Strides q, k, v, out;
    u32 dim, dim_v;
    u32 causal, want_lse;
    u32 mend, mend_keys; // the queries and keys of the tiles of the launch that is mended, see hidden.h
    f32 scale, scale2; // of the scores; of the scores in units of log 2
};

// visible returns how many keys query i sees.
DEVICE i64 visible(Shape p, i64 i) {
    if (!p.causal) return p.seq_k;
    return greatest((i64)0, least(i + 1 + p.shift, p.seq_k));
}

// first_query returns the first query that sees key j; it may be beyond the last.
DEVICE i64 first_query(Shape p, i64 j) { return p.causal ? greatest((i64)0, j - p.shift) : 0; }

// within returns x as a number of 0 to n.
DEVICE u32 within(i64 x, u32 n) { return (u32)greatest((i64)0, least(x, (i64)n)); }

// Item is one tile of one head.
struct Item {
    u64 b, h;  // h counts query heads or key heads
    i64 first; // query or key
};

// query_item returns a tile of queries. The last ones of a head come first: under
// a causal mask they see the most keys, and long blocks first leave no long end.
DEVICE Item query_item(Shape p, u64 item, u32 tile) {
    u64 tiles = ((u64)p.seq_q + tile - 1) / tile, head = item / tiles;
    return Item{head / p.heads, head % p.heads, (i64)((tiles - 1 - item % tiles) * tile)};
}

// key_item returns a tile of keys, the ones that most queries see first.
DEVICE Item key_item(Shape p, u64 item, u32 tile) {
    u64 tiles = ((u64)p.seq_k + tile - 1) / tile, head = item / tiles;
    return Item{head / p.kv_heads, head % p.kv_heads, (i64)(item % tiles * tile)};
}

// row_number returns the number of a query among all of them, as in lse.
DEVICE u64 row_number(Shape p, u64 b, u64 h, i64 i) { return (b * p.heads + h) * (u64)p.seq_q + (u64)i; }

// Rows is a tile of rows of one head.
template <class T> struct Rows {
    GLOBAL T* at; // the first one
    u64 stride;
    u32 n;   // how many there are
    u32 dim; // elements of one
};

// rows_of returns at most tile rows from number first on, of the seq that there are.
template <class T>
DEVICE Rows<T> rows_of(GLOBAL T* x, Strides s, u64 b, u64 h, i64 first, i64 seq, u32 tile, u32 dim) {
    return Rows<T>{x + b * s.batch + h * s.head + (u64)first * s.row, s.row, (u32)least(seq - first, (i64)tile), dim};
}
