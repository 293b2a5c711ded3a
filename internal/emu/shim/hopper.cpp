// What blocks of compute capability 9.0 have besides: block memory of a size that the
// launch says, barriers in it that count arrivals and bytes, named barriers, copies of
// boxes of tensors, and products of warpgroups.

#include "host.h"

#include <cmath>
#include <map>

namespace {

alignas(1024) unsigned char room[MAX_ROOM];
unsigned room_bytes;

struct Barrier {
    unsigned count, pending; // arrivals
    long bytes;              // that copies will add, less those that came
    unsigned phase;
};
std::map<uint32_t, Barrier> barriers;

struct Copy {
    uint32_t to, barrier;
    const SnugTensorMap* map;
    int at[4];
};
std::vector<Copy> copies;
std::map<uint32_t, unsigned> named; // arrivals
uint32_t random_state = 1;
bool early; // whether copies of the block may arrive while threads run

uint32_t random_number() {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 16;
}

Barrier* find(uint32_t at) {
    auto b = barriers.find(at);
    return b == barriers.end() ? nullptr : &b->second;
}

Barrier& barrier(uint32_t at) {
    Barrier* b = find(at);
    if (!b) snug_fault("a barrier that nobody has made");
    return *b;
}

void end_phase(Barrier& b) {
    if (b.pending > 0 || b.bytes != 0) return;
    b.phase++;
    b.pending = b.count;
}

const uint16_t* element(const Copy& c, unsigned row, unsigned column) {
    int64_t at[4] = {(int64_t)c.at[0] + column, (int64_t)c.at[1] + row, c.at[2], c.at[3]};
    const char* p = (const char*)(c.map->at + at[0]);
    for (int i = 0; i < 4; i++) {
        if (at[i] < 0 || (uint64_t)at[i] >= c.map->dims[i]) return nullptr;
        if (i > 0) p += at[i] * (int64_t)c.map->strides[i - 1];
    }
    return (const uint16_t*)p;
}

} // namespace

void begin_room(unsigned bytes) {
    room_bytes = bytes;
    memset(room, 0xff, bytes);
    barriers.clear();
    copies.clear();
    named.clear();
    early = random_number() % 2;
}

bool in_room(uintptr_t at) { return at - (uintptr_t)room < MAX_ROOM; }

bool barrier_passed(uint32_t at, uint32_t parity) {
    Barrier* b = find(at);
    return b && b->phase % 2 != parity;
}

const char* left_over() {
    if (!copies.empty()) return "the block ended before its copies";
    for (auto& n : named)
        if (n.second > 0) return "the block ended with arrivals at a named barrier that nobody waited for";
    return nullptr;
}

void copy_may_arrive() {
    if (early && random_number() % 2) copy_arrives();
}

bool copy_arrives() {
    if (copies.empty()) return false;
    size_t which = random_number() % copies.size(); // they arrive in any order
    Copy c = copies[which];
    copies.erase(copies.begin() + (long)which);
    for (unsigned row = 0; row < c.map->rows; row++)
        for (unsigned column = 0; column < 64; column++) {
            const uint16_t* from = element(c, row, column);
            uint32_t to = c.to + 128 * row + 2 * column;
            to ^= (to >> 7 & 7) << 4;
            uint16_t x = from ? *from : 0;
            memcpy(room + to, &x, 2);
        }
    Barrier& b = *find(c.barrier);
    b.bytes -= (long)(128 * c.map->rows);
    end_phase(b);
    return true;
}

extern "C" {

unsigned char* snug_room() { return room; }

unsigned char* snug_room_at(uint32_t at, uint32_t n) {
    if (at + n > room_bytes) snug_fault("beyond the block memory of the launch");
    return room + at;
}

void snug_barrier_init(uint32_t at, uint32_t count) {
    if (at % 8 || count == 0) snug_fault("a barrier that is not aligned to 8 bytes or counts nothing");
    snug_room_at(at, 8);
    if (find(at)) snug_fault("a barrier is made twice");
    barriers[at] = Barrier{count, count, 0, 0};
}

void snug_barrier_arrive(uint32_t at, uint32_t bytes) {
    if (late) publish_stores(here.thread);
    Barrier& b = barrier(at);
    if (b.pending == 0) snug_fault("more arrivals at a barrier than it counts");
    b.bytes += bytes;
    b.pending--;
    end_phase(b);
    if (bytes == 0) pause_thread();
}

void snug_barrier_wait(uint32_t at, uint32_t parity) {
    barrier(at);
    wait_barrier(at, parity);
}

void snug_named_barrier(uint32_t number, uint32_t threads, bool wait) {
    if (late) publish_stores(here.thread);
    if (number > 15 || threads % SNUG_LANES) snug_fault("a named barrier that is not there");
    bool all = ++named[number] == threads;
    if (all) {
        named[number] = 0;
        pass_named(number);
    } else if (wait) {
        wait_named(number);
    }
}

void snug_copy_box(uint32_t to, const SnugTensorMap* map, const int* at, uint32_t b) {
    if (to % 1024) snug_fault("a copy to a box that is not aligned to 1024 bytes");
    snug_room_at(to, (uint32_t)(128 * map->rows));
    barrier(b);
    copies.push_back(Copy{to, b, map, {at[0], at[1], at[2], at[3]}});
    copy_may_arrive();
}

void snug_hide_sums(SnugProducts* q) {
    SnugProduct& p = q->item[q->count - 1];
    for (unsigned i = 0; i + 1 < q->count; i++)
        if (q->item[i].sums == p.sums) return;
    unsigned i = 0;
    while (i < SNUG_SUMS && q->hidden[i].at) i++;
    if (i == SNUG_SUMS) snug_fault("products of more accumulators under way than the emulator holds");
    q->hidden[i].at = p.sums;
    for (unsigned j = 0; j < p.n; j++) {
        q->hidden[i].value[j] = p.sums[j];
        p.sums[j] = NAN;
    }
}

void snug_show_sums(SnugProducts* q) {
    SnugProduct& p = q->item[0];
    for (SnugSums& s : q->hidden)
        if (s.at == p.sums) {
            memcpy(p.sums, s.value, p.n * sizeof(float));
            s.at = nullptr;
        }
}

void snug_next_product(SnugProducts* q) {
    SnugProduct done = q->item[0];
    memmove(q->item, q->item + 1, --q->count * sizeof(SnugProduct));
    for (unsigned i = 0; i < q->count; i++)
        if (q->item[i].sums == done.sums) { // its sums are not there yet
            for (SnugSums& s : q->hidden)
                if (!s.at) {
                    s.at = done.sums;
                    memcpy(s.value, done.sums, done.n * sizeof(float));
                    break;
                }
            for (unsigned j = 0; j < done.n; j++) done.sums[j] = NAN;
            return;
        }
}

} // extern "C"
