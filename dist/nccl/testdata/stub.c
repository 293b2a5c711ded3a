// A library of NCCL that records its calls, with the signatures of nccl.h. It shows that Go passes every argument as C
// expects it, also the unique id by value.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;

static const char *last;
static uint64_t args[8];
static int count, answer;
static ncclUniqueId seen;

const char *stub_name(void) { return last; }
int stub_count(void) { return count; }
uint64_t stub_arg(int i) { return args[i]; }
void stub_answer(int result) { answer = result; }
int stub_id(int i) { return seen.internal[i]; }

static int record(const char *name, size_t n, const uint64_t *a) {
    last = name;
    count = (int)n;
    memcpy(args, a, n * sizeof *a);
    return answer;
}

#define V(x) ((uint64_t)(x))
#define RECORD(name, ...)                            \
    {                                                \
        uint64_t call[] = {__VA_ARGS__};             \
        return record(#name, sizeof call / 8, call); \
    }

int ncclGetVersion(int *v) { if (answer == 0) *v = 22703; RECORD(ncclGetVersion, V(v)) }
int ncclGetUniqueId(ncclUniqueId *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = (char)(i + 1);
    RECORD(ncclGetUniqueId, V(id))
}
int ncclCommInitRank(void **c, int n, ncclUniqueId id, int rank) {
    seen = id;
    *c = (void *)0x1234;
    RECORD(ncclCommInitRank, V(c), V(n), V(rank))
}
int ncclCommInitRankScalable(void **c, int n, int rank, int ids, ncclUniqueId *id, void *config) {
    seen = *id;
    *c = (void *)0x1234;
    RECORD(ncclCommInitRankScalable, V(c), V(n), V(rank), V(ids), V(id), V(config))
}
int ncclCommDestroy(void *c) RECORD(ncclCommDestroy, V(c))
int ncclCommAbort(void *c) RECORD(ncclCommAbort, V(c))
int ncclCommGetAsyncError(void *c, int *r) { *r = 6; RECORD(ncclCommGetAsyncError, V(c), V(r)) }
const char *ncclGetErrorString(int r) { return r == 3 ? "internal error" : "another"; }
const char *ncclGetLastError(void *c) { return c == 0 ? "the last error" : "of a communicator"; }
int ncclGroupStart(void) { last = "ncclGroupStart"; count = 0; return answer; }
int ncclGroupEnd(void) { last = "ncclGroupEnd"; count = 0; return answer; }
int ncclSend(const void *p, size_t n, int type, int peer, void *c, void *s) RECORD(ncclSend, V(p), V(n), V(type), V(peer), V(c), V(s))
int ncclRecv(void *p, size_t n, int type, int peer, void *c, void *s) RECORD(ncclRecv, V(p), V(n), V(type), V(peer), V(c), V(s))
int ncclAllGather(const void *p, void *q, size_t n, int type, void *c, void *s) RECORD(ncclAllGather, V(p), V(q), V(n), V(type), V(c), V(s))
int ncclBroadcast(const void *p, void *q, size_t n, int type, int root, void *c, void *s)
    RECORD(ncclBroadcast, V(p), V(q), V(n), V(type), V(root), V(c), V(s))
