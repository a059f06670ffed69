#pragma once
typedef struct { unsigned short x; } half;
typedef half __half;
