/* libcuda.so.1: the driver, which torch, Inductor and Triton load by this name. It links no header: pip's CUDA wheels hold
   that of the runtime alone, so attributes are numbers here. */
#define NOTHING(name) int name() { return 0; }

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "an error of the ghost"; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *kernel) {
    *value = attribute == 0 ? 1024 : 0; /* 0: the most threads of a block */
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) { /* Triton asks for shared memory and registers */
    switch (attribute) {
    case 8: *value = 49152; break;   /* shared memory of a block */
    case 10: *value = 32; break;     /* threads of a warp */
    case 12: *value = 65536; break;  /* registers of a block */
    case 16: *value = 132; break;    /* multiprocessors */
    case 75: *value = 9; break;      /* major and */
    case 76: *value = 0; break;      /* minor number of the architecture */
    case 97: *value = 232448; break; /* shared memory of a block that asks for more */
    default: *value = 1024;
    }
    return 0;
}

NOTHING(cuInit)
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuDeviceGet)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuGetErrorName)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuLaunchKernelEx)
NOTHING(cuLinkAddData_v2)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate_v2)
NOTHING(cuMemAlloc_v2)
NOTHING(cuModuleGetFunction)
NOTHING(cuModuleGetGlobal_v2)
NOTHING(cuModuleLoad)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleLoadDataEx)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuPointerGetAttribute)
NOTHING(cuStreamGetCtx)
NOTHING(cuStreamWriteValue32)
NOTHING(cuTensorMapEncodeTiled)
