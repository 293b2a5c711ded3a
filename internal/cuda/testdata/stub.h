// What the stub libraries share: they record the arguments of the last call, and return what they
// are told to.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int device;
typedef unsigned long long address, u64;

static const char *last;
static uint64_t args[16];
static int count, answer;

const char *stub_name(void) { return last; }
int stub_count(void) { return count; }
uint64_t stub_arg(int i) { return args[i]; }
void stub_answer(int result) { answer = result; }

static int record(const char *name, size_t n, const uint64_t *a) {
    last = name;
    count = (int)n;
    memcpy(args, a, n * sizeof *a);
    return answer;
}

#define V(x) ((uint64_t)(x))
#define RECORD(name, ...)                             \
    {                                                 \
        uint64_t call[] = {__VA_ARGS__};              \
        return record(#name, sizeof call / 8, call);  \
    }
// GIVE writes a function's result first, as it does when it succeeds.
#define GIVE(name, out, value, ...)           \
    {                                         \
        if (answer == 0) *(out) = (value);    \
        RECORD(name, V(out), __VA_ARGS__)     \
    }
#define HANDLE ((void *)0x1234)
