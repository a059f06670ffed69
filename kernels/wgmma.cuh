// The warpgroup's matrix multiply: d += a * b for 64 rows of A and kColumns rows of B, 32 bytes of each, from shared memory by
// descriptor, both K-major. Thread t of the warpgroup holds, in d[4j + 2h + e], row 16 (t / 32) + t % 32 / 4 + 8h, column
// 8j + 2 (t % 4) + e.
#pragma once

#include "element.cuh"

template <class Element, int kColumns>
struct Wgmma;

#define PLACES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS_8 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])

#define PLACES_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_16 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])

#define PLACES_32 PLACES_16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_32 SUMS_16, \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])

#define PLACES_64 PLACES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_64 SUMS_32, \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

#define PLACES_96 PLACES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_96 SUMS_64, \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])

#define PLACES_112 PLACES_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_112 SUMS_96, \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), \
  "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), \
  "+f"(d[110]), "+f"(d[111])

#define PLACES_128 PLACES_112 ", " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_128 SUMS_112, \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), \
  "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), \
  "+f"(d[126]), "+f"(d[127])

#define DEFINE_WGMMA(Element, types, majors, columns, sums, a_place, b_place, keep_place)                          \
  template <>                                                                                                      \
  struct Wgmma<Element, columns> {                                                                                 \
    /* Adds to d if `keep` is not 0, else overwrites it. */                                                        \
    DEVICE void multiply(float (&d)[columns / 2], u64 a, u64 b, u32 keep) {                                        \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #keep_place ", 0;\n"                                         \
                   "wgmma.mma_async.sync.aligned.m64n" #columns types " {" PLACES_##sums "}, %"                    \
                   #a_place ", %" #b_place ", p, 1, 1" majors "; }"                                                \
                   : SUMS_##sums                                                                                   \
                   : "l"(a), "l"(b), "r"(keep));                                                                   \
    }                                                                                                              \
  };
// Elements of 16 bits could also lie the other way around in shared memory; those of 8 bits cannot, and do not say.
#define DEFINE_WGMMAS(columns, sums, a_place, b_place, keep_place)                                                 \
  DEFINE_WGMMA(Bf16, "k16.f32.bf16.bf16", ", 0, 0", columns, sums, a_place, b_place, keep_place)                   \
  DEFINE_WGMMA(F16, "k16.f32.f16.f16", ", 0, 0", columns, sums, a_place, b_place, keep_place)                      \
  DEFINE_WGMMA(E4m3, "k32.f32.e4m3.e4m3", "", columns, sums, a_place, b_place, keep_place)

DEFINE_WGMMAS(16, 8, 8, 9, 10)
DEFINE_WGMMAS(32, 16, 16, 17, 18)
DEFINE_WGMMAS(64, 32, 32, 33, 34)
DEFINE_WGMMAS(128, 64, 64, 65, 66)
DEFINE_WGMMAS(192, 96, 96, 97, 98)
DEFINE_WGMMAS(224, 112, 112, 113, 114)
DEFINE_WGMMAS(256, 128, 128, 129, 130)
#undef DEFINE_WGMMAS
#undef DEFINE_WGMMA
