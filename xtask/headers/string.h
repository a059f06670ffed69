#pragma once
#ifdef __cplusplus
extern "C"
#endif
char *strerror(int);
