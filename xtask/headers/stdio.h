#pragma once
typedef struct FILE FILE;
extern FILE *stderr;
#ifdef __cplusplus
extern "C"
#endif
int fprintf(FILE *, const char *, ...);
