#pragma once
typedef struct { unsigned short x; } __nv_bfloat16;
