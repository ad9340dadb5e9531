// Whole groups of 128 or 32 of a quantized weight, or of 16 of NVFP4, two or three rows times the four tiles of a panel, in
// assembly: the loop in which products of many rows spend their time. Used by linear_quantized.h, whose formula and order
// of sums this keeps.
//
// Three rows want 12 integer sums, 12 float sums, three rows and four lines: 31 of 32 registers. From intrinsics GCC makes
// copies and puts sums on the stack, which takes half of the speed; with this, the dot products run at what the
// instructions allow: of groups of 32 8 of them, a conversion, a multiplication and a multiply-add for each sum, so 0.7 of
// their peak, and of 128 0.9. A table of numbers takes the register of the mask, which is read from memory.
// What comes next is asked for before every four lines: for a whole group of 128 at once, requests wait for one another.
#pragma once

#include "linear_form.h"
#include "linear_tile.h"

#ifdef __AVX512VNNI__
namespace KVASIR_ISA {

constexpr int64_t GROUP = 32;  // what 4 bits of ours and the formats of llama.cpp have; others take the slower way
constexpr int64_t LONG_GROUP = 128;  // of weights with scales of so many columns or more
constexpr int64_t NVFP4_GROUP = 16;
constexpr int64_t ASKED_PER_LINE = 2;

// Where a run of groups begins. Bytes from row to row: of values `ldx`, of scales and offsets (4 each) `lds`; from the
// scales of a group to those of the next, and of minima: 0 where all of the run share them.
struct Groups {
  const uint8_t* lines;
  const void* scales;
  const uint16_t* minima;
  const int8_t* values;
  const float* row_scales;
  const int32_t* row_offsets;
  int64_t ldx, lds, scale_step;
  const uint8_t* next;  // what is asked for, `next_step` bytes further each time
  int64_t next_step;
  const uint8_t* table;  // of a codebook
};

// Registers: 0-11 integer sums and 12-23 float sums, by row; 24-26 rows; 27-30 lines, or what a tile is scaled by.
#define KVASIR_KEEP(...) __VA_ARGS__
#define KVASIR_DROP(...)
#define KVASIR_OP(op, a, b, c) op " %%zmm" #a ", %%zmm" #b ", %%zmm" #c "\n\t"
#define KVASIR_ROW_OP(op, row, a, b, c, d) \
  KVASIR_OP(op, row, 27, a) KVASIR_OP(op, row, 28, b) KVASIR_OP(op, row, 29, c) KVASIR_OP(op, row, 30, d)
#define KVASIR_BROADCAST(op, at, base, stride) \
  op " " at "(%[" base "]), %%zmm24\n\t" op " " at "(%[" base "],%[" stride "]), %%zmm25\n\t"
#define KVASIR_BROADCAST_THIRD(op, at, base, stride) op " " at "(%[" base "],%[" stride "],2), %%zmm26\n\t"
#define KVASIR_ROWS(THIRD, op, at, base, stride) \
  KVASIR_BROADCAST(op, at, base, stride) THIRD(KVASIR_BROADCAST_THIRD(op, at, base, stride))
#define KVASIR_TO_FOUR(op, from, a, b, c, d) \
  op " %%zmm" #from ", %%zmm" #a "\n\t" op " %%zmm" #from ", %%zmm" #b "\n\t" \
  op " %%zmm" #from ", %%zmm" #c "\n\t" op " %%zmm" #from ", %%zmm" #d "\n\t"
#define KVASIR_EACH(op, a, b, c, d) \
  op " %%zmm" #a ", %%zmm" #a "\n\t" op " %%zmm" #b ", %%zmm" #b "\n\t" \
  op " %%zmm" #c ", %%zmm" #c "\n\t" op " %%zmm" #d ", %%zmm" #d "\n\t"
#define KVASIR_SCALED(row, a, b, c, d) \
  KVASIR_OP("vmulps", row, a, a) KVASIR_OP("vmulps", row, b, b) KVASIR_OP("vmulps", row, c, c) KVASIR_OP("vmulps", row, d, d)
#define KVASIR_ADDED(a, b, c, d, e, f, g, h) \
  KVASIR_OP("vfmadd231ps", 27, a, e) KVASIR_OP("vfmadd231ps", 28, b, f) \
  KVASIR_OP("vfmadd231ps", 29, c, g) KVASIR_OP("vfmadd231ps", 30, d, h)
#define KVASIR_SUMS(op, where, at, a, b, c, d)                                            \
  op(at "(%[" where "])", a) op(at "+64(%[" where "])", b) op(at "+128(%[" where "])", c) \
  op(at "+192(%[" where "])", d)
#define KVASIR_LOAD(from, to) "vmovups " from ", %%zmm" #to "\n\t"
#define KVASIR_STORE(to, from) "vmovups %%zmm" #from ", " to "\n\t"
#define KVASIR_HALVES(from) \
  "vcvtph2ps (%[" from "]), %%zmm27\n\tvcvtph2ps 32(%[" from "]), %%zmm28\n\t" \
  "vcvtph2ps 64(%[" from "]), %%zmm29\n\tvcvtph2ps 96(%[" from "]), %%zmm30\n\t"

#define KVASIR_DOTS(THIRD, at)                                                                              \
  KVASIR_ROWS(THIRD, "vpbroadcastd", at, "values", "ldx") KVASIR_ROW_OP("vpdpbusd", 24, 0, 1, 2, 3)         \
  KVASIR_ROW_OP("vpdpbusd", 25, 4, 5, 6, 7) THIRD(KVASIR_ROW_OP("vpdpbusd", 26, 8, 9, 10, 11))
#define KVASIR_ASK "prefetcht0 (%[next])\n\tadd %[next_step], %[next]\n\t"
#define KVASIR_ASK_4 KVASIR_ASK KVASIR_ASK KVASIR_ASK KVASIR_ASK
#define KVASIR_LINES_4(LINE, THIRD, a, b, c, d) \
  KVASIR_ASK_4 KVASIR_ASK_4 LINE(THIRD, a) LINE(THIRD, b) LINE(THIRD, c) LINE(THIRD, d)
#define KVASIR_LINE_8(THIRD, n)                                                                             \
  KVASIR_LOAD("256*" #n "(%[lines])", 27) KVASIR_LOAD("256*" #n "+64(%[lines])", 28)                        \
  KVASIR_LOAD("256*" #n "+128(%[lines])", 29) KVASIR_LOAD("256*" #n "+192(%[lines])", 30)                   \
  KVASIR_DOTS(THIRD, "4*" #n)
#define KVASIR_LOW(at, to) "vpandd " at "(%[lines]), %%zmm31, %%zmm" #to "\n\t"
#define KVASIR_HIGH(at, to) "vpsrlw $4, " at "(%[lines]), %%zmm" #to "\n\t" KVASIR_OP("vpandd", 31, to, to)
#define KVASIR_LINE_4(THIRD, n)                                                                             \
  KVASIR_LOW("256*" #n, 27) KVASIR_LOW("256*" #n "+64", 28) KVASIR_LOW("256*" #n "+128", 29)                \
  KVASIR_LOW("256*" #n "+192", 30) KVASIR_DOTS(THIRD, "8*" #n)                                              \
  KVASIR_HIGH("256*" #n, 27) KVASIR_HIGH("256*" #n "+64", 28) KVASIR_HIGH("256*" #n "+128", 29)             \
  KVASIR_HIGH("256*" #n "+192", 30) KVASIR_DOTS(THIRD, "8*" #n "+4")

#define KVASIR_SUMS_IN_OUT(THIRD, op, where)                                                                       \
  KVASIR_SUMS(op, where, "0", 12, 13, 14, 15) KVASIR_SUMS(op, where, "256", 16, 17, 18, 19)                           \
  THIRD(KVASIR_SUMS(op, where, "512", 20, 21, 22, 23))
#define KVASIR_SCALE(THIRD, SCALES)                                                                         \
  SCALES KVASIR_EACH("vcvtdq2ps", 0, 1, 2, 3) KVASIR_EACH("vcvtdq2ps", 4, 5, 6, 7)         \
  THIRD(KVASIR_EACH("vcvtdq2ps", 8, 9, 10, 11)) KVASIR_ROWS(THIRD, "vbroadcastss", "", "row_scales", "lds") \
  KVASIR_SCALED(24, 0, 1, 2, 3) KVASIR_ADDED(0, 1, 2, 3, 12, 13, 14, 15)                                    \
  KVASIR_SCALED(25, 4, 5, 6, 7) KVASIR_ADDED(4, 5, 6, 7, 16, 17, 18, 19)                                    \
  THIRD(KVASIR_SCALED(26, 8, 9, 10, 11) KVASIR_ADDED(8, 9, 10, 11, 20, 21, 22, 23))
#define KVASIR_SUBTRACT(row, e, f, g, h)                                                                    \
  KVASIR_OP("vfnmadd231ps", 27, row, e) KVASIR_OP("vfnmadd231ps", 28, row, f)                               \
  KVASIR_OP("vfnmadd231ps", 29, row, g) KVASIR_OP("vfnmadd231ps", 30, row, h)

#define KVASIR_BEGIN(THIRD)                                                                                 \
  KVASIR_ROWS(THIRD, "vpbroadcastd", "", "row_offsets", "lds")                                              \
  KVASIR_TO_FOUR("vmovdqa64", 24, 0, 1, 2, 3) KVASIR_TO_FOUR("vmovdqa64", 25, 4, 5, 6, 7)                   \
  THIRD(KVASIR_TO_FOUR("vmovdqa64", 26, 8, 9, 10, 11))
#define KVASIR_LINES_16(LINE, THIRD)                                                                        \
  KVASIR_LINES_4(LINE, THIRD, 0, 1, 2, 3) KVASIR_LINES_4(LINE, THIRD, 4, 5, 6, 7)                           \
  KVASIR_LINES_4(LINE, THIRD, 8, 9, 10, 11) KVASIR_LINES_4(LINE, THIRD, 12, 13, 14, 15)
#define KVASIR_SHORT_8(THIRD) \
  KVASIR_LINES_4(KVASIR_LINE_8, THIRD, 0, 1, 2, 3) KVASIR_LINES_4(KVASIR_LINE_8, THIRD, 4, 5, 6, 7)
#define KVASIR_LONG_8(THIRD)                                                                                \
  KVASIR_LINES_16(KVASIR_LINE_8, THIRD)                                                                     \
  KVASIR_LINES_4(KVASIR_LINE_8, THIRD, 16, 17, 18, 19) KVASIR_LINES_4(KVASIR_LINE_8, THIRD, 20, 21, 22, 23) \
  KVASIR_LINES_4(KVASIR_LINE_8, THIRD, 24, 25, 26, 27) KVASIR_LINES_4(KVASIR_LINE_8, THIRD, 28, 29, 30, 31)
#define KVASIR_GROUPS_8(THIRD, LINES, values, bytes)                                                        \
  KVASIR_SUMS_IN_OUT(THIRD, KVASIR_LOAD, "from") "1:\n\t" KVASIR_BEGIN(THIRD) LINES(THIRD)                  \
  KVASIR_SCALE(THIRD, KVASIR_HALVES("scales")) "add $" #bytes ", %[lines]\n\t" KVASIR_NEXT_GROUP(values)    \
  KVASIR_SUMS_IN_OUT(THIRD, KVASIR_STORE, "sums")
#define KVASIR_ZERO(a) "vpxord %%zmm" #a ", %%zmm" #a ", %%zmm" #a "\n\t"
#define KVASIR_ZEROS(a, b, c, d) KVASIR_ZERO(a) KVASIR_ZERO(b) KVASIR_ZERO(c) KVASIR_ZERO(d)
#define KVASIR_SHORT_4(THIRD) KVASIR_LINES_4(KVASIR_LINE_4, THIRD, 0, 1, 2, 3)
#define KVASIR_LONG_4(THIRD) KVASIR_LINES_16(KVASIR_LINE_4, THIRD)
#define KVASIR_GROUPS_4(THIRD, LINES, values, bytes)                                                        \
  KVASIR_SUMS_IN_OUT(THIRD, KVASIR_LOAD, "from") "vpbroadcastd %[mask], %%zmm31\n\t"                        \
  "1:\n\t" KVASIR_ZEROS(0, 1, 2, 3) KVASIR_ZEROS(4, 5, 6, 7) THIRD(KVASIR_ZEROS(8, 9, 10, 11)) LINES(THIRD) \
  KVASIR_SCALE(THIRD, KVASIR_HALVES("scales")) KVASIR_HALVES("minima") KVASIR_ROWS(THIRD, "vbroadcastss", "", "row_offsets", "lds")  \
  KVASIR_SUBTRACT(24, 12, 13, 14, 15) KVASIR_SUBTRACT(25, 16, 17, 18, 19)                                   \
  THIRD(KVASIR_SUBTRACT(26, 20, 21, 22, 23))                                                                \
  "add $" #bytes ", %[lines]\n\tadd %[scale_step], %[minima]\n\t" KVASIR_NEXT_GROUP(values)                \
  KVASIR_SUMS_IN_OUT(THIRD, KVASIR_STORE, "sums")
#define KVASIR_LOOK_UP(to) "vpandd %[mask]%{1to16%}, %%zmm" #to ", %%zmm" #to "\n\t" KVASIR_OP("vpshufb", to, 31, to)
#define KVASIR_LOW_LISTED(at, to) KVASIR_LOAD(at "(%[lines])", to) KVASIR_LOOK_UP(to)
#define KVASIR_HIGH_LISTED(at, to) "vpsrlw $4, " at "(%[lines]), %%zmm" #to "\n\t" KVASIR_LOOK_UP(to)
#define KVASIR_LINE_LISTED(THIRD, n)                                                                        \
  KVASIR_LOW_LISTED("256*" #n, 27) KVASIR_LOW_LISTED("256*" #n "+64", 28) KVASIR_LOW_LISTED("256*" #n "+128", 29) \
  KVASIR_LOW_LISTED("256*" #n "+192", 30) KVASIR_DOTS(THIRD, "8*" #n) KVASIR_HIGH_LISTED("256*" #n, 27)     \
  KVASIR_HIGH_LISTED("256*" #n "+64", 28) KVASIR_HIGH_LISTED("256*" #n "+128", 29)                          \
  KVASIR_HIGH_LISTED("256*" #n "+192", 30) KVASIR_DOTS(THIRD, "8*" #n "+4")
#define KVASIR_BYTE_SCALE(at, shift, to)                                                                    \
  "vpmovzxbd " at "(%[scales]), %%zmm" #to "\n\tvpslld $" #shift ", %%zmm" #to ", %%zmm" #to "\n\t"
#define KVASIR_BYTE_SCALES(shift)                                                                           \
  KVASIR_BYTE_SCALE("", shift, 27) KVASIR_BYTE_SCALE("16", shift, 28) KVASIR_BYTE_SCALE("32", shift, 29)    \
  KVASIR_BYTE_SCALE("48", shift, 30)
#define KVASIR_TO_E4M3(to) "vmulps %[factor]%{1to16%}, %%zmm" #to ", %%zmm" #to "\n\t"
#define KVASIR_E8M0 KVASIR_BYTE_SCALES(23)
#define KVASIR_E4M3 KVASIR_BYTE_SCALES(20) KVASIR_TO_E4M3(27) KVASIR_TO_E4M3(28) KVASIR_TO_E4M3(29) KVASIR_TO_E4M3(30)
#define KVASIR_LISTED_16(THIRD) KVASIR_ASK_4 KVASIR_LINE_LISTED(THIRD, 0) KVASIR_LINE_LISTED(THIRD, 1)
#define KVASIR_LISTED_32(THIRD) KVASIR_LINES_4(KVASIR_LINE_LISTED, THIRD, 0, 1, 2, 3)
#define KVASIR_LISTED_128(THIRD) KVASIR_LINES_16(KVASIR_LINE_LISTED, THIRD)
#define KVASIR_GROUPS_LISTED(THIRD, LINES, SCALES, values, bytes)                                           \
  KVASIR_SUMS_IN_OUT(THIRD, KVASIR_LOAD, "from") "vbroadcasti32x4 %[table], %%zmm31\n\t"                    \
  "1:\n\t" KVASIR_BEGIN(THIRD) LINES(THIRD) KVASIR_SCALE(THIRD, SCALES)                                     \
  "add $" #bytes ", %[lines]\n\t" KVASIR_NEXT_GROUP(values) KVASIR_SUMS_IN_OUT(THIRD, KVASIR_STORE, "sums")
#define KVASIR_NEXT_GROUP(values)                                                                           \
  "add $" #values ", %[values]\n\tadd %[scale_step], %[scales]\n\tadd $4, %[row_scales]\n\tadd $4, %[row_offsets]\n\t" \
  "dec %[count]\n\tjnz 1b\n\t"

// sums = from + the products of `count` groups, (MR, 4, 16); g becomes where the next group begins.
// SIZE: of a group, 16 where scales are e4m3.
template <int MR, class F, int64_t SIZE>
inline __attribute__((noinline)) void add_groups(Groups& g, int64_t count, const float* from, float* sums) {
  [[maybe_unused]] static constexpr uint32_t MASK = 0x0f0f0f0f;
  [[maybe_unused]] static constexpr float E4M3_FACTOR = 0x1p120f;
  constexpr bool LISTED = F::PER_LINE == 8 && F::ZERO == 128;  // of a codebook
  alignas(16) uint8_t table[16];
  __builtin_memcpy(table, LISTED ? g.table : E2M1_NUMBERS, 16);
#define KVASIR_RUN(text)                                                                                          \
  asm volatile(text                                                                                               \
               : [lines] "+r"(g.lines), [scales] "+r"(g.scales), [minima] "+r"(g.minima), [values] "+r"(g.values), \
                 [row_scales] "+r"(g.row_scales), [row_offsets] "+r"(g.row_offsets), [count] "+r"(count),         \
                 [next] "+r"(g.next)                                                                              \
               : [ldx] "r"(g.ldx), [lds] "r"(g.lds), [from] "r"(from), [sums] "r"(sums),                          \
                 [scale_step] "m"(g.scale_step), [next_step] "m"(g.next_step),                                    \
                 [mask] "m"(MASK), [factor] "m"(E4M3_FACTOR), [table] "m"(table)                                  \
               : "memory", "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9",  \
                 "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19",        \
                 "zmm20", "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29",        \
                 "zmm30", "zmm31")
  static_assert(MR == 2 || MR == 3, "two or three rows");
  if constexpr (SIZE == NVFP4_GROUP && MR == 3) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_KEEP, KVASIR_LISTED_16, KVASIR_E4M3, 16, 512));
  else if constexpr (SIZE == NVFP4_GROUP) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_DROP, KVASIR_LISTED_16, KVASIR_E4M3, 16, 512));
  else if constexpr (F::ZERO == 12 && MR == 3) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_KEEP, KVASIR_LISTED_32, KVASIR_E8M0, 32, 1024));
  else if constexpr (F::ZERO == 12) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_DROP, KVASIR_LISTED_32, KVASIR_E8M0, 32, 1024));
  else if constexpr (SIZE == LONG_GROUP && LISTED && MR == 3) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_KEEP, KVASIR_LISTED_128, KVASIR_HALVES("scales"), 128, 4096));
  else if constexpr (SIZE == LONG_GROUP && LISTED) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_DROP, KVASIR_LISTED_128, KVASIR_HALVES("scales"), 128, 4096));
  else if constexpr (LISTED && MR == 3) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_KEEP, KVASIR_LISTED_32, KVASIR_HALVES("scales"), 32, 1024));
  else if constexpr (LISTED) KVASIR_RUN(KVASIR_GROUPS_LISTED(KVASIR_DROP, KVASIR_LISTED_32, KVASIR_HALVES("scales"), 32, 1024));
  else if constexpr (SIZE == LONG_GROUP && F::MINIMA && MR == 3) KVASIR_RUN(KVASIR_GROUPS_4(KVASIR_KEEP, KVASIR_LONG_4, 128, 4096));
  else if constexpr (SIZE == LONG_GROUP && F::MINIMA) KVASIR_RUN(KVASIR_GROUPS_4(KVASIR_DROP, KVASIR_LONG_4, 128, 4096));
  else if constexpr (F::MINIMA && MR == 3) KVASIR_RUN(KVASIR_GROUPS_4(KVASIR_KEEP, KVASIR_SHORT_4, 32, 1024));
  else if constexpr (F::MINIMA) KVASIR_RUN(KVASIR_GROUPS_4(KVASIR_DROP, KVASIR_SHORT_4, 32, 1024));
  else if constexpr (SIZE == LONG_GROUP && MR == 3) KVASIR_RUN(KVASIR_GROUPS_8(KVASIR_KEEP, KVASIR_LONG_8, 128, 8192));
  else if constexpr (SIZE == LONG_GROUP) KVASIR_RUN(KVASIR_GROUPS_8(KVASIR_DROP, KVASIR_LONG_8, 128, 8192));
  else if constexpr (MR == 3) KVASIR_RUN(KVASIR_GROUPS_8(KVASIR_KEEP, KVASIR_SHORT_8, 32, 2048));
  else KVASIR_RUN(KVASIR_GROUPS_8(KVASIR_DROP, KVASIR_SHORT_8, 32, 2048));
}

}  // namespace KVASIR_ISA
#endif
