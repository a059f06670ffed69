#pragma once
#ifdef __cplusplus
extern "C"
#endif
void exit(int);
