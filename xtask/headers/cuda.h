#pragma once
typedef void *CUmodule;
typedef void *CUlibrary;
