// A HIP driver and a hipBLASLt that record their calls, with the signatures of hip_runtime_api.h
// and hipblaslt.h.
#include "stub.h"

int hipInit(unsigned flags) RECORD(hipInit, V(flags))
int hipDriverGetVersion(int *v) { if (answer == 0) *v = 60300000; RECORD(hipDriverGetVersion, V(v)) }
int hipGetDeviceCount(int *n) { if (answer == 0) *n = 1; RECORD(hipGetDeviceCount, V(n)) }
int hipDeviceGet(int *d, int i) GIVE(hipDeviceGet, d, 0, V(i))
int hipDeviceGetName(char *s, int n, int d) RECORD(hipDeviceGetName, V(s), V(n), V(d))
int hipDeviceGetAttribute(int *v, int a, int d) GIVE(hipDeviceGetAttribute, v, a == 63 ? 304 : 0, V(a), V(d))
int hipStreamCreateWithFlags(void **s, unsigned f) GIVE(hipStreamCreateWithFlags, s, HANDLE, V(f))
int hipStreamDestroy(void *s) RECORD(hipStreamDestroy, V(s))
int hipStreamSynchronize(void *s) RECORD(hipStreamSynchronize, V(s))
int hipStreamQuery(void *s) RECORD(hipStreamQuery, V(s))
int hipStreamWaitEvent(void *s, void *e, unsigned f) RECORD(hipStreamWaitEvent, V(s), V(e), V(f))
int hipEventCreateWithFlags(void **e, unsigned f) GIVE(hipEventCreateWithFlags, e, HANDLE, V(f))
int hipEventDestroy(void *e) RECORD(hipEventDestroy, V(e))
int hipEventRecord(void *e, void *s) RECORD(hipEventRecord, V(e), V(s))
int hipEventQuery(void *e) RECORD(hipEventQuery, V(e))
int hipEventSynchronize(void *e) RECORD(hipEventSynchronize, V(e))
int hipMemGetInfo(size_t *f, size_t *t) GIVE(hipMemGetInfo, f, *t = 1 << 20, V(t))
int hipMalloc(void **p, size_t n) GIVE(hipMalloc, p, (void *)0x5678, V(n))
int hipFree(void *p) RECORD(hipFree, V(p))
int hipMemsetD8Async(void *p, unsigned char v, size_t n, void *s) RECORD(hipMemsetD8Async, V(p), V(v), V(n), V(s))
int hipHostMalloc(void **p, size_t n, unsigned f) GIVE(hipHostMalloc, p, malloc(n), V(n), V(f))
int hipHostFree(void *p) { if (answer == 0) free(p); RECORD(hipHostFree, V(p)) }
int hipMemcpyHtoDAsync(void *d, const void *p, size_t n, void *s) RECORD(hipMemcpyHtoDAsync, V(d), V(p), V(n), V(s))
int hipMemcpyDtoHAsync(void *p, void *d, size_t n, void *s) RECORD(hipMemcpyDtoHAsync, V(p), V(d), V(n), V(s))
int hipMemcpyDtoDAsync(void *d, void *e, size_t n, void *s) RECORD(hipMemcpyDtoDAsync, V(d), V(e), V(n), V(s))
int hipModuleLoadData(void **m, const void *image) GIVE(hipModuleLoadData, m, HANDLE, V(image))
int hipModuleUnload(void *m) RECORD(hipModuleUnload, V(m))
int hipModuleGetFunction(void **f, void *m, const char *name) GIVE(hipModuleGetFunction, f, HANDLE, V(m), strlen(name))
int hipModuleLaunchKernel(void *f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *s, void **params, void **extra)
    RECORD(hipModuleLaunchKernel, V(f), V(bx), V(by), V(bz), V(tx), V(ty), V(tz), V(shared), V(s), V(params), V(extra))
int hipStreamBeginCapture(void *s, int mode) RECORD(hipStreamBeginCapture, V(s), V(mode))
int hipStreamEndCapture(void *s, void **g) RECORD(hipStreamEndCapture, V(s), V(g))
int hipGraphInstantiateWithFlags(void **x, void *g, u64 f) GIVE(hipGraphInstantiateWithFlags, x, HANDLE, V(g), V(f))
int hipGraphDestroy(void *g) RECORD(hipGraphDestroy, V(g))
int hipGraphLaunch(void *x, void *s) RECORD(hipGraphLaunch, V(x), V(s))
int hipGraphExecDestroy(void *x) RECORD(hipGraphExecDestroy, V(x))
static int current = 3; // of the thread
int hipGetDevice(int *d) { if (answer == 0) *d = current; RECORD(hipGetDevice, V(d)) }
int hipSetDevice(int d) { if (answer == 0) current = d; RECORD(hipSetDevice, V(d)) }
int hipStreamGetDevice(void *s, int *d) RECORD(hipStreamGetDevice, V(s), V(d))
// Of hipDeviceProp_tR0600 the architecture's name is used.
int hipGetDevicePropertiesR0600(char *p, int d)
{
    if (answer == 0) strcpy(p + 1160, "gfx942:sramecc+:xnack-");
    RECORD(hipGetDevicePropertiesR0600, V(p), V(d))
}

int hipblasLtCreate(void **h) { RECORD(hipblasLtCreate, V(h)) }
int hipblasLtDestroy(void *h) RECORD(hipblasLtDestroy, V(h))
int hipblasLtMatmulDescCreate(void **d, int compute, int scale) RECORD(hipblasLtMatmulDescCreate, V(d), V(compute), V(scale))
int hipblasLtMatmulDescDestroy(void *d) RECORD(hipblasLtMatmulDescDestroy, V(d))
int hipblasLtMatmulDescSetAttribute(void *d, int a, const void *v, size_t n) RECORD(hipblasLtMatmulDescSetAttribute, V(d), V(a), V(v), V(n))
int hipblasLtMatrixLayoutCreate(void **l, int t, uint64_t r, uint64_t c, int64_t ld)
    RECORD(hipblasLtMatrixLayoutCreate, V(l), V(t), V(r), V(c), V(ld))
int hipblasLtMatrixLayoutDestroy(void *l) RECORD(hipblasLtMatrixLayoutDestroy, V(l))
int hipblasLtMatmulPreferenceCreate(void **p) RECORD(hipblasLtMatmulPreferenceCreate, V(p))
int hipblasLtMatmulPreferenceDestroy(void *p) RECORD(hipblasLtMatmulPreferenceDestroy, V(p))
int hipblasLtMatmulPreferenceSetAttribute(void *p, int a, const void *v, size_t n)
    RECORD(hipblasLtMatmulPreferenceSetAttribute, V(p), V(a), V(v), V(n))
int hipblasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a1, void *b, void *c, void *e, void *p, int want,
                                   void *results, int *got)
    RECORD(hipblasLtMatmulAlgoGetHeuristic, V(h), V(d), V(a1), V(b), V(c), V(e), V(p), V(want), V(results), V(got))
int hipblasLtMatmul(void *h, void *desc, const void *alpha, const void *a1, void *al, const void *b, void *bl,
                   const void *beta, const void *c, void *cl, void *d, void *dl, const void *algo, void *w, size_t n, void *s)
    RECORD(hipblasLtMatmul, V(h), V(desc), V(alpha), V(a1), V(al), V(b), V(bl), V(beta), V(c), V(cl), V(d), V(dl),
           V(algo), V(w), V(n), V(s))
