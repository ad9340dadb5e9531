// Brings weights into the layout of linear.h, and takes rows back out of it.
#pragma once

#include "linear.h"
#include "tile.h"

namespace KVASIR_ISA {

// Source row of lane `lane` of tile `tile`, or -1 for padding. rows: of the source.
KVASIR_INLINE int64_t row_of(int64_t tile, int64_t lane, int64_t rows, bool gated) {
  if (!gated) return tile * 16 + lane < rows ? tile * 16 + lane : -1;
  const int64_t column = tile / 2 * 16 + lane;
  return column < rows / 2 ? column + (tile & 1) * (rows / 2) : -1;
}

struct Pack {
  const uint8_t* source;  // (rows, k), bits each, rows dense; 4 bits: an even column in the low half of a byte
  int64_t rows, k, tiles;
  bool gated;
  int bits;
  uint32_t* target;
};

// What one output has in line `line`: 4 bytes of its row, in the order of linear.h.
KVASIR_INLINE uint32_t word_of(const Pack& a, int64_t row, int64_t line) {
  if (a.bits == 16) {
    const uint8_t* from = a.source + (row * a.k + 2 * line) * 2;
    uint32_t both = 0;
    __builtin_memcpy(&both, from, 2 * line + 1 < a.k ? 4 : 2);
    return both;
  }
  uint32_t four;
  __builtin_memcpy(&four, a.source + (a.bits == 8 ? row * a.k : row * a.k / 2) + 4 * line, 4);
  if (a.bits == 8) return four ^ 0x80808080u;
  // Nibbles 0 1 2 3 4 5 6 7 become those of bytes 04 15 26 37.
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= (four >> 4 * i & 15) << 8 * i | (four >> 4 * (i + 4) & 15) << (8 * i + 4);
  return out;
}

// Lines [begin, end) of one tile, word by word. to: of line 0; stride: words from a line to the next.
KVASIR_INLINE void pack_words(const Pack& a, int64_t tile, int64_t begin, int64_t end, uint32_t* to, int64_t stride) {
  const uint32_t padding = a.bits == 8 ? 0x80808080u : 0;
  for (int64_t lane = 0; lane < 16; ++lane) {
    const int64_t row = row_of(tile, lane, a.rows, a.gated);
    for (int64_t line = begin; line < end; ++line) to[line * stride + lane] = row < 0 ? padding : word_of(a, row, line);
  }
}

// The same for a multiple of 16 lines of a tile without padding, of 16 or 8 bits: a transposition.
KVASIR_INLINE void pack_block(const Pack& a, int64_t tile, int64_t begin, int64_t end, uint32_t* to, int64_t stride) {
  const int64_t row_bytes = a.k * a.bits / 8;
  const uint32_t* rows[16];
  for (int64_t lane = 0; lane < 16; ++lane)
    rows[lane] = reinterpret_cast<const uint32_t*>(a.source + row_of(tile, lane, a.rows, a.gated) * row_bytes) + begin;
  transpose_16(rows, end - begin, to + begin * stride, stride);
  if (a.bits == 16) return;
  for (int64_t line = begin; line < end; ++line)
    for (int64_t lane = 0; lane < 16; ++lane) to[line * stride + lane] ^= 0x80808080u;
}

inline void pack(int tid, int nth, const Pack& a) {
  const int64_t per_line = 32 / a.bits, lines = (a.k + per_line - 1) / per_line, panels = (a.tiles + 3) / 4;
  const int64_t in_blocks = a.bits == 4 || a.k % per_line ? 0 : lines / 16 * 16;
  for (int64_t panel; (panel = kvasir::claim(tid, nth, panels)) >= 0;) {
    const int64_t width = panel * 4 + 4 <= a.tiles ? 4 : a.tiles - panel * 4;
    uint32_t* base = a.target + panel * 4 * lines * 16;
    // Blocks of 32 lines: what is read of 64 rows and written stays in the first-level cache.
    for (int64_t begin = 0; begin < lines; begin += 32) {
      const int64_t end = begin + 32 < lines ? begin + 32 : lines;
      for (int64_t tile = panel * 4; tile < panel * 4 + width; ++tile) {
        const bool whole = row_of(tile, 15, a.rows, a.gated) >= 0;
        const int64_t middle = !whole || in_blocks < begin ? begin : in_blocks < end ? in_blocks : end;
        uint32_t* to = base + (tile - panel * 4) * 16;
        if (middle > begin) pack_block(a, tile, begin, middle, to, width * 16);
        pack_words(a, tile, middle, end, to, width * 16);
      }
    }
  }
}

// out[i] = row ids[i] of a packed bfloat16 weight: a line each holds two of its values.
inline void rows_bf16(int tid, int nth, const kvasir::Linear& w, const int64_t* ids, int64_t count, uint16_t* out) {
  const int64_t lines = (w.k + 1) / 2;
  for (int64_t i; (i = kvasir::claim(tid, nth, count)) >= 0;) {
    const int64_t tile = ids[i] / 16, panel = tile / 4, width = panel * 4 + 4 <= w.tiles ? 4 : w.tiles - panel * 4;
    const uint8_t* from = w.weight + (panel * 4 * lines + tile % 4) * 64 + ids[i] % 16 * 4;
    uint16_t* to = out + i * w.k;
    for (int64_t pair = 0; pair < w.k / 2; ++pair) __builtin_memcpy(to + 2 * pair, from + pair * width * 64, 4);
    if (w.k & 1) __builtin_memcpy(to + w.k - 1, from + (lines - 1) * width * 64, 2);
  }
}

}  // namespace KVASIR_ISA
