#pragma once
#include <stddef.h>
#define CUDART_VERSION 13000
#define __host__
#define __device__
typedef void *cudaStream_t;
typedef struct { unsigned int x, y, z; } dim3;
typedef struct { int x, y; } int2;
typedef struct { double x, y; } double2;
typedef struct { int x, y, z, w; } int4;
