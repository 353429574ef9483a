/* libnvrtc.so.13: the compiler by which torch makes a few elementwise kernels at run time. Here each is empty. torch looks
   functions up in a library of this name, so it is preloaded under it. */
#include <stddef.h>

#define NOTHING(name) int name() { return 0; }

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
int nvrtcCreateProgram(void **program) { *program = (void *)8; return 0; }
int nvrtcGetLoweredName(void *program, const char *name, const char **lowered) { *lowered = "ghost"; return 0; }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { *bytes = 1; return 0; }
int nvrtcGetPTXSize(void *program, size_t *bytes) { *bytes = 1; return 0; }
int nvrtcGetProgramLogSize(void *program, size_t *bytes) { *bytes = 1; return 0; }
const char *nvrtcGetErrorString(int error) { return "an error of the ghost"; }
NOTHING(nvrtcAddNameExpression)
NOTHING(nvrtcCompileProgram)
NOTHING(nvrtcDestroyProgram)
NOTHING(nvrtcGetCUBIN)
NOTHING(nvrtcGetPTX)
NOTHING(nvrtcGetProgramLog)
