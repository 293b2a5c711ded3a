// Stores that other threads see late. A thread's stores are its own until it comes to a barrier of the
// block or of the warp, or to a fence; an exchange of lanes orders nothing. What a block has stored to
// the memory of operands is its own until the launch ends, or a fence. So a kernel whose barrier or fence
// is missing reads what was there before. With an order by a seed some stores are seen earlier, by that
// seed.
//
// Threads run one after the other, so a thread's stores are hidden when it is left, and shown when it goes
// on: Store.value and memory change places. Modules that are compiled with -fsanitize=thread say what they
// are about to store (check.cpp).

#include <algorithm>
#include <cstring>

#include "host.h"

bool late;

namespace {

// Store is what a store has changed.
struct Store {
    char* at;
    uint8_t n;
    char value[16]; // before it, or, while it is hidden, after it
};

std::vector<Store> own[MAX_THREADS]; // of each thread, which others do not see
std::vector<Store> blocks_own;       // what other blocks do not see of the running block, in order
std::vector<Store> ended;            // the same of blocks that have ended, hidden
uintptr_t shared_begin, shared_end;

void swap(Store& s) {
    char now[sizeof s.value];
    memcpy(now, s.at, s.n);
    memcpy(s.at, s.value, s.n);
    memcpy(s.value, now, s.n);
}

bool in_block_memory(const Store& s) {
    return ((uintptr_t)s.at >= shared_begin && (uintptr_t)s.at < shared_end) || in_room((uintptr_t)s.at);
}

bool overlap(const Store& s, const char* at, size_t n) { return s.at < at + n && at < s.at + s.n; }

// publish lets the block see a store that is shown.
void publish(const Store& s) {
    if (!in_block_memory(s)) blocks_own.push_back(s);
}

} // namespace

void late_block(char* begin, char* end) { shared_begin = (uintptr_t)begin, shared_end = (uintptr_t)end; }

void late_store(char* at, size_t n) {
    std::vector<Store>& stores = own[here.thread];
    for (; n > 0;) {
        Store s = {at, (uint8_t)std::min(n, sizeof s.value), {}};
        memcpy(s.value, at, s.n);
        stores.push_back(s);
        at += s.n, n -= s.n;
    }
}

void hide_stores(unsigned thread) {
    std::vector<Store>& stores = own[thread];
    if (stores.empty()) return;
    if (uint64_t round = order_bits()) { // some lines of memory are seen now, all that the thread has stored there
        auto early = [&](const Store& s) { return ((uintptr_t)s.at / 64 * 0x9e3779b97f4a7c15 ^ round) * 0xbf58476d1ce4e5b9 >> 62 == 0; };
        auto kept = std::stable_partition(stores.begin(), stores.end(), [&](const Store& s) { return !early(s); });
        std::for_each(kept, stores.end(), publish);
        stores.erase(kept, stores.end());
    }
    for (size_t i = stores.size(); i-- > 0;) swap(stores[i]);
}

void show_stores(unsigned thread) {
    for (Store& s : own[thread]) swap(s);
}

void publish_stores(unsigned thread) {
    for (const Store& s : own[thread]) publish(s);
    own[thread].clear();
}

// An atomic operation comes after the thread's own stores to the same place, so whoever sees it sees those.
void publish_place(unsigned thread, const void* p, size_t n) {
    std::vector<Store>& stores = own[thread];
    auto kept = std::stable_partition(stores.begin(), stores.end(), [&](const Store& s) { return !overlap(s, (const char*)p, n); });
    blocks_own.erase(std::remove_if(blocks_own.begin(), blocks_own.end(), [&](const Store& s) { return overlap(s, (const char*)p, n); }), blocks_own.end());
    stores.erase(kept, stores.end());
}

// A fence is for what the thread has stored, and for what it has seen of others: all that its block has published.
void fence_stores(unsigned thread) {
    own[thread].clear();
    blocks_own.clear();
}

void end_late_block(unsigned threads) {
    size_t first = ended.size();
    for (size_t i = blocks_own.size(); i-- > 0;) {
        swap(blocks_own[i]);
        ended.push_back(blocks_own[i]);
    }
    std::reverse(ended.begin() + (long)first, ended.end());
    blocks_own.clear();
    for (unsigned i = 0; i < threads; i++) { // these are hidden, and come after what the thread has published
        for (Store& s : own[i])
            if (!in_block_memory(s)) ended.push_back(s);
        own[i].clear();
    }
}

void end_late_launch() {
    for (Store& s : ended) swap(s);
    ended.clear();
}
