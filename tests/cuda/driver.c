/* Stand-ins for NVIDIA's driver: compiled as libcuda.so.1, which finds no device, and as libnvidia-ml.so.1, which says
   that there are STAND_IN_GPUS (1) H100 with 80 GiB. What looks for GPUs finds them; what computes on one fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100 /* CUDA_ERROR_NO_DEVICE */
#define CUDA(name) int name(void) { return NO_DEVICE; }
typedef unsigned long long u64;

CUDA(cuInit) CUDA(cuTensorMapEncodeTiled) CUDA(cuPointerGetAttribute) CUDA(cuMemUnmap) CUDA(cuMemSetAccess)
CUDA(cuMemRelease) CUDA(cuMemMap) CUDA(cuMemGetAllocationGranularity) CUDA(cuMemCreate) CUDA(cuMemAddressReserve)
CUDA(cuMemAddressFree) CUDA(cuGetErrorString) CUDA(cuGetErrorName) CUDA(cuDevicePrimaryCtxRetain)
CUDA(cuDeviceGetAttribute) CUDA(cuDeviceGetCount) CUDA(cuDeviceGet) CUDA(cuCtxSetCurrent) CUDA(cuCtxGetCurrent)
CUDA(cuLaunchKernelEx) CUDA(cuModuleLoadData) CUDA(cuFuncSetAttribute) CUDA(cuFuncGetAttribute)

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status) {
    *function = strcmp(name, "cuDriverGetVersion") ? (void *)cuInit : (void *)cuDriverGetVersion;
    if (status) *status = 0;
    return 0;
}
int cuGetProcAddress(const char *name, void **function, int version, u64 flags) {
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "the driver is a stand-in"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.0"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuDriverGetVersion(version); }
int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *wanted = getenv("STAND_IN_GPUS");
    *count = wanted ? atoi(wanted) : 1;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(u64)(index + 1); return 0; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (u64)device - 1; return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, "NVIDIA H100 80GB HBM3"); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-00000000-0000-0000-0000-%012llu", (u64)device - 1);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, u64 *total_free_used) {
    total_free_used[0] = total_free_used[1] = 80ULL << 30;
    total_free_used[2] = 0;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetP2PStatus(void *device, void *other, int kind, int *status) { *status = 0; return 0; }
