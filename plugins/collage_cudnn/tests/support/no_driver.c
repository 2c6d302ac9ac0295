/* A driver, and a runtime on it, without a GPU: for what cuDNN asks when it is to compile for one that is only
   described. Modules load, kernels are found in them, and nothing can be launched. */
#define FAILS(name) int name(void) { return 100; }
#define SUCCEEDS(name) int name(void) { return 0; }
#define GIVES(name) int name(void **found) { *found = (void *)16; return 0; }
#define COUNTS(name) int name(int *count) { *count = 0; return 0; }

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "there is no driver"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "NO_DRIVER"; return 0; }
int cuGetProcAddress(const char *symbol, void **found, int version, unsigned long flags) { *found = 0; return 500; }
int cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long flags, void *status) {
    *found = 0;
    return 500;
}

FAILS(cuInit)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuStreamGetCtx)
FAILS(cuCtxGetLimit)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
FAILS(cuLibraryLoadFromFile)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuTensorMapEncodeTiled)
FAILS(cuTensorMapEncodeIm2col)
GIVES(cuCtxGetCurrent)
GIVES(cuCtxPopCurrent)
GIVES(cuKernelGetFunction)
GIVES(cuLibraryGetKernel)
GIVES(cuLibraryLoadData)
GIVES(cuModuleGetFunction)
GIVES(cuModuleLoadData)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuModuleUnload)
COUNTS(cuDeviceGet)
COUNTS(cuDeviceGetCount)
COUNTS(cuKernelGetAttribute)

/* The runtime's, which has what the described GPU has. */
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 16 ? 132 : attribute == 97 ? 232448 : 0;
    return 0;
}
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
const char *cudaGetErrorString(int error) { return "there is no driver"; }
COUNTS(cudaGetDevice)
FAILS(cudaGraphAddKernelNode)
FAILS(cudaMemcpyAsync)
FAILS(cudaMemsetAsync)
FAILS(cudaStreamSynchronize)
