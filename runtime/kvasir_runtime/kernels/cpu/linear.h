// A packed weight, and the product with it that every thread of a region takes part in.
//
//     out[m][o] = round(bias[o] + sum_k(x[m][k] * weight[o][k]) [+ residual[m][o]])
//     or, gated:  out[m][o] = round(silu(gate[m][o]) * up[m][o]), gate and up being the two halves of the outputs
//
// Invariant: each sum is one chain along k in float32, the same for every number of rows, of threads, and wherever the
// row stands. A token's result does not depend on the batch that it is computed in. The exception is a weight with
// `amx`: from 16 rows on, or from 64 where it is quantized, its sums are those of linear_amx.h.
//
// Layout of a weight (outputs, k): outputs are cut into tiles of 16, four tiles form a panel, panels follow one another.
//     bfloat16  panel: (k / 2, tiles, 16, 2)        a line of 64 bytes is what one dot-product instruction takes
//     8 bits    panel: (k / 4, tiles, 16, 4)        unsigned, value + 128
//     4 bits    panel: (k / 8, tiles, 16, 4)        low half of a byte: k % 8 < 4, high half: the others; unsigned, e2m1 or places
// so one thread reads one stream. The last panel has as many tiles as are left. k is padded with zeros to whole lines.
// Gated, tiles alternate: 16 outputs of gate, then the 16 of up that belong to them.
#pragma once

#include "attention.h"
#include "isa.h"
#include "pool.h"

namespace kvasir {

// E2M1: numbers of 4 bits with an exponent, 0 to 6 in steps of 0.5 to 2, and a sign. CODEBOOK: 4 bits are places in a table.
enum class Weights : int32_t { BFLOAT16 = 0, BITS8 = 1, BITS4 = 2, E2M1 = 3, CODEBOOK = 4 };

constexpr int64_t TILE = 16, PANEL_TILES = 4;
constexpr int32_t SHIFT_E8M0 = 23, SHIFT_E4M3 = 20;

// Python fills it once per weight (cpu/linear.py has the same fields); kernels of a whole step keep pointers to it.
struct Linear {
  const uint8_t* weight;
  const void* scales;      // quantized: (panels, k / (group * sharing), tiles, 16) float16, of e2m1 bytes; times `units`
  const uint16_t* minima;  // 4 bits: the same shape, same unit; w = unit * (scale * q - minimum)
  const float* units;      // quantized: (tiles * 16); of e2m1 those of its halves
  const float* bias;       // (tiles * 16) in the order of the tiles, or null
  const uint8_t* table;    // codebook: 16 integers and 128, then the integers; at a multiple of 16 bytes
  int64_t k;
  int64_t outputs;  // columns of out: half of the weight's rows when gated
  int64_t tiles;    // of the weight, padding included; even when gated
  int64_t group;    // quantized: values along k of a row that are rounded together, a multiple of 8 that divides k
  int64_t sharing;  // quantized: groups that share a scale and a minimum of the weight, which divides their number
  Weights kind;
  int32_t gated;
  int32_t amx;  // products of many rows of bfloat16 run on AMX
  int32_t scale_shift;  // e2m1: where the bits of a scale are in a float32: SHIFT_E8M0 or SHIFT_E4M3
};

// Weights of one size, each with rows of its own, which lie one after another: those of weights[i] are first[i] ..
// first[i + 1].
struct Grouped {
  const Linear* const* weights;
  const int64_t* first;  // (count + 1), from 0 on
  int64_t count;
};

// One use of a weight. Rows are dense: k values of x, `outputs` of out and residual.
struct Product {
  const void* x;
  void* out;
  const void* residual;  // added before rounding; or null
  int64_t rows;
  Type type;  // of all three; bfloat16 weights take BFLOAT16 only
};

}  // namespace kvasir

namespace KVASIR_ISA {

// Bytes that all threads share in SLOT_LINEAR, to be asked for before the region; of grouped weights by any of them.
int64_t linear_bytes(const kvasir::Linear& weight, int64_t rows);

// x must be whole before; out is whole after the caller's next barrier. Claims loop 0; quantized weights pass a barrier
// of their own first when there are many rows.
void linear(int tid, int nth, const kvasir::Linear& weight, const kvasir::Product& product);

// The same of grouped weights: product.rows are those of all. A row has the bits that `linear` gives it among the rows of
// its weight.
void linear_grouped(int tid, int nth, const kvasir::Grouped& weights, const kvasir::Product& product);

// Rows of a bfloat16 weight that is not gated: out[i] = weight[ids[i]], (count, k) bfloat16. Claims loop 0.
void linear_rows(int tid, int nth, const kvasir::Linear& weight, const int64_t* ids, int64_t count, uint16_t* out);

}  // namespace KVASIR_ISA
