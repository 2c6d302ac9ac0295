/* A CUDA driver for tests: the real bindings call it, on a machine without a GPU.

   Device memory is the host's. What is queued on a stream is done when somebody waits for it, so that a copy
   that is read too early is seen. A kernel does nothing; it takes time by a clock that only work moves on.
   Copies that come from or go to memory that is neither pinned nor the device's are done at once, as by the
   real one. FAKE_CUDA_BYTES limits the device's memory. Types as in cuda.h of CUDA 13. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { UNSUPPORTED = 900 };
enum { COPY, SET, RECORD, KERNEL, GRAPH };

typedef struct { int kind; uint64_t to, from, size; } Work;
typedef struct { Work *work; size_t count, room; int capturing; } Stream;
typedef struct { double ms; int recorded; Stream *on; } Event;

static double now_ms = 1.0;
static uint64_t held_bytes;
static __thread void *current;
static __thread int captures; /* so many streams of this thread: none of its memory may come or go meanwhile */
#define MOST 100000
static struct { uint64_t address, size; int pinned; } known[MOST];
static size_t known_count;

static int find(uint64_t address, uint64_t size, int pinned) {
    for (size_t i = 0; i < known_count; i++)
        if (known[i].address && known[i].pinned == pinned && address >= known[i].address &&
            address + size <= known[i].address + known[i].size)
            return 1;
    return 0;
}

static int take(uint64_t *address, size_t size, int pinned) {
    const char *limit = getenv("FAKE_CUDA_BYTES");
    if (!current) return INVALID_CONTEXT;
    if (captures) return UNSUPPORTED;
    if (!pinned && limit && held_bytes + size > strtoull(limit, 0, 10)) return OUT_OF_MEMORY;
    if (known_count == MOST || size > (size_t)8 << 30) return OUT_OF_MEMORY;
    void *made = aligned_alloc(256, (size + 255) / 256 * 256);
    memset(made, 0xCC, size);
    known[known_count].address = *address = (uint64_t)made;
    known[known_count].size = size;
    known[known_count++].pinned = pinned;
    if (!pinned) held_bytes += size;
    return OK;
}

static int drop(uint64_t address, int pinned) {
    if (captures) return UNSUPPORTED;
    for (size_t i = 0; i < known_count; i++)
        if (known[i].address == address && known[i].pinned == pinned) {
            if (!pinned) held_bytes -= known[i].size;
            free((void *)address);
            known[i].address = 0;
            return OK;
        }
    return INVALID_VALUE;
}

static void push(Stream *s, Work w) {
    if (s->count == s->room) s->work = realloc(s->work, (s->room = 2 * s->room + 8) * sizeof(Work));
    s->work[s->count++] = w;
}

static int run(Stream *s) {
    for (size_t i = 0; i < s->count; i++) {
        Work w = s->work[i];
        now_ms += 0.001;
        if (w.kind == COPY) memcpy((void *)w.to, (void *)w.from, w.size);
        if (w.kind == SET) memset((void *)w.to, (int)w.from, w.size);
        if (w.kind == KERNEL) now_ms += 0.010;
        if (w.kind == RECORD) ((Event *)w.to)->ms = now_ms, ((Event *)w.to)->recorded = 1;
        if (w.kind == GRAPH) run((Stream *)w.to);
    }
    return OK;
}

static int finish(Stream *s) {
    if (s->capturing) return UNSUPPORTED;
    run(s);
    s->count = 0;
    return OK;
}

static int queue(Stream *s, Work w) {
    if (!current) return INVALID_CONTEXT;
    push(s, w);
    return OK;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *v) { return *v = 13000, OK; }
int cuDeviceGet(int *d, int ordinal) { return ordinal ? INVALID_VALUE : (*d = 0, OK); }
int cuDeviceGetName(char *name, int size, int d) { return snprintf(name, size, "Fake GPU"), OK; }
int cuDeviceGetPCIBusId(char *id, int size, int d) { return snprintf(id, size, "0000:01:00.0"), OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int d) { return *bytes = (size_t)8 << 30, OK; }
int cuDeviceGetAttribute(int *value, int which, int d) {
    *value = which == 75 ? 9 : which == 76 ? 0 : which == 38 ? 1 << 20 : which == 16 ? 4 : 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { return *c = &now_ms, OK; }
int cuCtxSetCurrent(void *c) { return current = c, OK; }
int cuMemAlloc_v2(uint64_t *a, size_t size) { return size ? take(a, size, 0) : INVALID_VALUE; }
int cuMemFree_v2(uint64_t a) { return drop(a, 0); }
int cuMemHostAlloc(void **a, size_t size, unsigned flags) { return take((uint64_t *)a, size, 1); }
int cuMemFreeHost(void *a) { return drop((uint64_t)a, 1); }

static int copy(uint64_t to, uint64_t from, size_t size, Stream *s, uint64_t device, uint64_t host) {
    if (!find(device, size, 0)) return INVALID_VALUE;
    if (find(host, size, 1)) return queue(s, (Work){COPY, to, from, size});
    if (finish(s)) return UNSUPPORTED;
    memcpy((void *)to, (void *)from, size);
    return OK;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, Stream *s) {
    return copy(to, (uint64_t)from, n, s, to, (uint64_t)from);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, Stream *s) {
    return copy((uint64_t)to, from, n, s, from, (uint64_t)to);
}
int cuMemsetD8Async(uint64_t a, unsigned char byte, size_t n, Stream *s) {
    return find(a, n, 0) ? queue(s, (Work){SET, a, byte, n}) : INVALID_VALUE;
}

int cuStreamCreate(Stream **s, unsigned flags) { return *s = calloc(1, sizeof(Stream)), OK; }
int cuStreamDestroy_v2(Stream *s) { return free(s->work), free(s), OK; }
int cuStreamSynchronize(Stream *s) { return finish(s); }
int cuEventCreate(Event **e, unsigned flags) {
    return current ? (*e = calloc(1, sizeof(Event)), OK) : INVALID_CONTEXT;
}
int cuEventDestroy_v2(Event *e) { return free(e), OK; }
int cuEventRecord(Event *e, Stream *s) { return e->on = s, queue(s, (Work){RECORD, (uint64_t)e, 0, 0}); }
int cuEventElapsedTime_v2(float *ms, Event *a, Event *b) {
    return a->recorded && b->recorded ? (*ms = (float)(b->ms - a->ms), OK) : INVALID_VALUE;
}
int cuEventElapsedTime(float *ms, Event *a, Event *b) { return cuEventElapsedTime_v2(ms, a, b); }

int cuStreamBeginCapture_v2(Stream *s, int mode) {
    if (s->capturing || finish(s)) return UNSUPPORTED;
    return captures++, s->capturing = 1, OK;
}
int cuStreamEndCapture(Stream *s, Stream **graph) {
    if (!s->capturing) return INVALID_VALUE;
    captures--;
    *graph = calloc(1, sizeof(Stream));
    **graph = *s;
    (*graph)->capturing = 0;
    memset(s, 0, sizeof(Stream));
    return OK;
}
int cuGraphInstantiateWithFlags(Stream **exec, Stream *graph, unsigned long long flags) {
    *exec = calloc(1, sizeof(Stream));
    for (size_t i = 0; i < graph->count; i++) push(*exec, graph->work[i]);
    return OK;
}
int cuGraphDestroy(Stream *graph) { return cuStreamDestroy_v2(graph); }
int cuGraphLaunch(Stream *exec, Stream *s) { return queue(s, (Work){GRAPH, (uint64_t)exec, 0, 0}); }
int cuGraphExecDestroy(Stream *exec) { return cuStreamDestroy_v2(exec); }

int cuModuleLoadData(void **m, const void *image) { return *m = (void *)image, image ? OK : INVALID_VALUE; }
int cuModuleGetFunction(void **f, void *m, const char *name) { return *f = m, OK; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Stream *s, void **parameters, void **extra) {
    return queue(s, (Work){KERNEL, 0, 0, 0});
}
int cuGetErrorName(int status, const char **name) { return *name = "FAKE", OK; }

/* How the bindings find all of these. */
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    static const char *suffixes[] = {"_v3", "_v2", ""};
    char full[128];
    *found = 0;
    for (int i = 0; i < 3 && !*found; i++) {
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        *found = dlsym(RTLD_DEFAULT, full);
    }
    if (!*found) {
        void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        for (int i = 0; i < 3 && self && !*found; i++) {
            snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
            *found = dlsym(self, full);
        }
        if (!*found && self && !strcmp(name, "cuGraphInstantiate"))
            *found = dlsym(self, "cuGraphInstantiateWithFlags");
    }
    if (status) *status = *found ? 0 : 1;
    return *found ? OK : NOT_FOUND;
}
