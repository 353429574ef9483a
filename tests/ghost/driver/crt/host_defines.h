/* What pip's CUDA headers expect of the compiler's own header, which is in no wheel. For a C compiler alone. */
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline
#define __no_return__ __attribute__((noreturn))
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
