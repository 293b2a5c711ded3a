// A CUDA driver and a cuBLASLt that record their calls, with the signatures of
// cuda.h and cublasLt.h. It shows that Go passes every argument as C expects it.
#include "stub.h"

int cuInit(unsigned flags) RECORD(cuInit, V(flags))
int cuDriverGetVersion(int *v) { if (answer == 0) *v = 12000; RECORD(cuDriverGetVersion, V(v)) }
int cuDeviceGetCount(int *n) { if (answer == 0) *n = 1; RECORD(cuDeviceGetCount, V(n)) }
int cuDeviceGet(device *d, int i) GIVE(cuDeviceGet, d, 0, V(i))
int cuDeviceGetName(char *s, int n, device d) RECORD(cuDeviceGetName, V(s), V(n), V(d))
int cuDeviceGetAttribute(int *v, int a, device d) GIVE(cuDeviceGetAttribute, v, a == 75 ? 9 : a == 16 ? 132 : a == 115, V(a), V(d))
int cuDevicePrimaryCtxRetain(void **c, device d) GIVE(cuDevicePrimaryCtxRetain, c, HANDLE, V(d))
int cuDevicePrimaryCtxRelease_v2(device d) RECORD(cuDevicePrimaryCtxRelease_v2, V(d))
int cuCtxPushCurrent_v2(void *c) RECORD(cuCtxPushCurrent_v2, V(c))
int cuCtxPopCurrent_v2(void **c) { *c = HANDLE; RECORD(cuCtxPopCurrent_v2, V(c)) }
int cuStreamCreate(void **s, unsigned f) GIVE(cuStreamCreate, s, HANDLE, V(f))
int cuStreamDestroy_v2(void *s) RECORD(cuStreamDestroy_v2, V(s))
int cuStreamSynchronize(void *s) RECORD(cuStreamSynchronize, V(s))
int cuStreamQuery(void *s) RECORD(cuStreamQuery, V(s))
int cuStreamWaitEvent(void *s, void *e, unsigned f) RECORD(cuStreamWaitEvent, V(s), V(e), V(f))
int cuStreamGetCtx(void *s, void **c) RECORD(cuStreamGetCtx, V(s), V(c))
int cuEventCreate(void **e, unsigned f) GIVE(cuEventCreate, e, HANDLE, V(f))
int cuEventDestroy_v2(void *e) RECORD(cuEventDestroy_v2, V(e))
int cuEventRecord(void *e, void *s) RECORD(cuEventRecord, V(e), V(s))
int cuEventQuery(void *e) RECORD(cuEventQuery, V(e))
int cuEventSynchronize(void *e) RECORD(cuEventSynchronize, V(e))
int cuMemGetInfo_v2(size_t *f, size_t *t) GIVE(cuMemGetInfo_v2, f, *t = 1 << 20, V(t))
int cuMemAlloc_v2(address *p, size_t n) GIVE(cuMemAlloc_v2, p, 0x5678, V(n))
int cuMemFree_v2(address p) RECORD(cuMemFree_v2, V(p))
int cuMemsetD8Async(address p, unsigned char v, size_t n, void *s) RECORD(cuMemsetD8Async, V(p), V(v), V(n), V(s))
int cuMemHostAlloc(void **p, size_t n, unsigned f) GIVE(cuMemHostAlloc, p, malloc(n), V(n), V(f))
int cuMemFreeHost(void *p) { if (answer == 0) free(p); RECORD(cuMemFreeHost, V(p)) }
int cuMemcpyHtoDAsync_v2(address d, const void *p, size_t n, void *s) RECORD(cuMemcpyHtoDAsync_v2, V(d), V(p), V(n), V(s))
int cuMemcpyDtoHAsync_v2(void *p, address d, size_t n, void *s) RECORD(cuMemcpyDtoHAsync_v2, V(p), V(d), V(n), V(s))
int cuMemcpyDtoDAsync_v2(address d, address e, size_t n, void *s) RECORD(cuMemcpyDtoDAsync_v2, V(d), V(e), V(n), V(s))
int cuMemPoolCreate(void **p, const void *props) GIVE(cuMemPoolCreate, p, HANDLE, V(props))
int cuMemPoolDestroy(void *p) RECORD(cuMemPoolDestroy, V(p))
int cuMemPoolSetAttribute(void *p, int a, void *v) RECORD(cuMemPoolSetAttribute, V(p), V(a), V(v))
int cuMemPoolGetAttribute(void *p, int a, void *v) RECORD(cuMemPoolGetAttribute, V(p), V(a), V(v))
int cuMemPoolTrimTo(void *p, size_t n) RECORD(cuMemPoolTrimTo, V(p), V(n))
int cuMemAllocFromPoolAsync(address *d, size_t n, void *p, void *s) GIVE(cuMemAllocFromPoolAsync, d, 0x5678, V(n), V(p), V(s))
int cuMemFreeAsync(address d, void *s) RECORD(cuMemFreeAsync, V(d), V(s))
int cuModuleLoadData(void **m, const void *image) GIVE(cuModuleLoadData, m, HANDLE, V(image))
int cuModuleUnload(void *m) RECORD(cuModuleUnload, V(m))
int cuModuleGetFunction(void **f, void *m, const char *name) GIVE(cuModuleGetFunction, f, HANDLE, V(m), strlen(name))
int cuFuncSetAttribute(void *f, int a, int v) RECORD(cuFuncSetAttribute, V(f), V(a), V(v))
int cuTensorMapEncodeTiled(void *m, int t, unsigned rank, void *p, const u64 *dims, const u64 *strides, const unsigned *box,
                           const unsigned *steps, int interleave, int swizzle, int promotion, int fill)
    RECORD(cuTensorMapEncodeTiled, V(m), V(t), V(rank), V(p), V(dims), V(strides), V(box), V(steps), V(interleave), V(swizzle),
           V(promotion), V(fill))
int cuLaunchKernel(void *f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *s, void **params, void **extra)
    RECORD(cuLaunchKernel, V(f), V(bx), V(by), V(bz), V(tx), V(ty), V(tz), V(shared), V(s), V(params), V(extra))
int cuStreamBeginCapture_v2(void *s, int mode) RECORD(cuStreamBeginCapture_v2, V(s), V(mode))
int cuStreamEndCapture(void *s, void **g) RECORD(cuStreamEndCapture, V(s), V(g))
int cuGraphInstantiateWithFlags(void **x, void *g, u64 f) GIVE(cuGraphInstantiateWithFlags, x, HANDLE, V(g), V(f))
int cuGraphDestroy(void *g) RECORD(cuGraphDestroy, V(g))
int cuGraphLaunch(void *x, void *s) RECORD(cuGraphLaunch, V(x), V(s))
int cuGraphExecDestroy(void *x) RECORD(cuGraphExecDestroy, V(x))

int cublasLtCreate(void **h) { RECORD(cublasLtCreate, V(h)) }
int cublasLtDestroy(void *h) RECORD(cublasLtDestroy, V(h))
int cublasLtMatmulDescCreate(void **d, int compute, int scale) RECORD(cublasLtMatmulDescCreate, V(d), V(compute), V(scale))
int cublasLtMatmulDescDestroy(void *d) RECORD(cublasLtMatmulDescDestroy, V(d))
int cublasLtMatmulDescSetAttribute(void *d, int a, const void *v, size_t n) RECORD(cublasLtMatmulDescSetAttribute, V(d), V(a), V(v), V(n))
int cublasLtMatrixLayoutCreate(void **l, int t, uint64_t r, uint64_t c, int64_t ld)
    RECORD(cublasLtMatrixLayoutCreate, V(l), V(t), V(r), V(c), V(ld))
int cublasLtMatrixLayoutDestroy(void *l) RECORD(cublasLtMatrixLayoutDestroy, V(l))
int cublasLtMatmulPreferenceCreate(void **p) RECORD(cublasLtMatmulPreferenceCreate, V(p))
int cublasLtMatmulPreferenceDestroy(void *p) RECORD(cublasLtMatmulPreferenceDestroy, V(p))
int cublasLtMatmulPreferenceSetAttribute(void *p, int a, const void *v, size_t n)
    RECORD(cublasLtMatmulPreferenceSetAttribute, V(p), V(a), V(v), V(n))
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a1, void *b, void *c, void *e, void *p, int want,
                                   void *results, int *got)
    RECORD(cublasLtMatmulAlgoGetHeuristic, V(h), V(d), V(a1), V(b), V(c), V(e), V(p), V(want), V(results), V(got))
int cublasLtMatmul(void *h, void *desc, const void *alpha, const void *a1, void *al, const void *b, void *bl,
                   const void *beta, const void *c, void *cl, void *d, void *dl, const void *algo, void *w, size_t n, void *s)
    RECORD(cublasLtMatmul, V(h), V(desc), V(alpha), V(a1), V(al), V(b), V(bl), V(beta), V(c), V(cl), V(d), V(dl),
           V(algo), V(w), V(n), V(s))
