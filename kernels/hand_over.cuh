// How a tile leaves the registers of who multiplied it: piece by piece, rounded, to the storer.
//
// Of gemm_hopper.cu, behind its Unit and Sums.
#pragma once

#include "fold.cuh"
#include "parts.cuh"

// One of the two warpgroups, and its buffers for pieces.
struct Giver {
  Ring<C::kBuffers>& ring;
  u32 shared, group, warp, lane;

  DEVICE_METHOD u32 buffer() const { return group * C::kBuffers + ring.place; }
  // Where the next piece is to be laid out, once what was there has left.
  DEVICE_METHOD u32 await() const {
    barrier_wait(shared + Layout::kFree + 8 * buffer(), ring.lap ^ 1);
    return shared + Layout::kPieces + buffer() * C::kPieceBytes;
  }
  // A piece, rounded; with SwiGLU it has half of the columns.
  DEVICE_METHOD void give(const u32 (&pairs)[C::kPieceN / 4], bool swiglu = false) {
    const u32 to = await();
    if (swiglu) lay_out_swiglu<C::kPieceN>(pairs, to, warp, lane);
    else lay_out<C::kPieceN>(pairs, to, warp, lane);
    give(true);
  }
  // The storer's turn; if not `kept`, there are no pieces.
  DEVICE_METHOD void give(bool kept) {
    if (lane == 0 && warp == 0) store_shared_4(shared + Layout::kKept + 4 * buffer(), kept);
    fence_shared_to_copies();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Layout::kReady + 8 * buffer());
    ring.next();
  }
};

// Whether a tile is finished as a whole, without moving its sums.
DEVICE bool is_plain(const HopperParams& p, const Unit& unit, bool folded) {
  return unit.parts == 1 && !folded && (C::kHoldsActivated || p.gemm.activation == Activation::none);
}

// What all sums are multiplied by, if they have one scale.
DEVICE float one_scale(const HopperParams& p) {
  return ELEMENT::kScaled ? first_scale(p.scales.a) * first_scale(p.scales.b) : 1.0f;
}

// A plain tile that is held in registers, finished and rounded, and leaves while the next one is multiplied.
struct Held {
  static const int kPairs = C::kPieceN / 4;  // registers of a piece
  u32 pieces = 0;                            // that have not left
  u32 pairs[C::kHolds ? C::kPieces : 1][kPairs];

  // Nothing is held: or the compiler would keep what was, for it sees no connection between `pieces` and `pairs`.
  DEVICE_METHOD void forget() {
#pragma unroll
    for (auto& piece : pairs) {
#pragma unroll
      for (u32& pair : piece) asm volatile("" : "=r"(pair));
    }
  }
  DEVICE_METHOD void give_piece(const HopperParams& p, Giver& giver) {
    if constexpr (C::kHolds) {
      giver.give(pairs[0], C::kHoldsActivated && makes_pairs(p.gemm));
      --pieces;
#pragma unroll
      for (int piece = 0; piece + 1 < C::kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) pairs[piece][i] = pairs[piece + 1][i];
      }
    }
  }
  DEVICE_METHOD void give(const HopperParams& p, Giver& giver) {
#pragma unroll 1
    while (pieces > 0) give_piece(p, giver);
  }
};

// Whether a unit has so many blocks of K that the pieces of the tile before leave meanwhile.
DEVICE bool has_time_for_pieces(const Unit& unit) { return unit.end - unit.begin > C::kPieces; }

// Finishes a plain tile: it is held, or leaves at once. This is compiled for each piece: no sums are moved.
DEVICE void finish_plain(const HopperParams& p, const Unit& unit, Sums& sums, u32 blocks, Held& held, Giver& giver) {
  const bool has_scales = takes_scales(p, unit, false), has_bias = p.gemm.bias != 0;
  const float scale = has_scales ? 1.0f : one_scale(p);
#pragma unroll
  for (int piece = 0; piece < C::kPieces; ++piece) {
    if (!C::kHolds && piece == C::kPiecesN && blocks == 1) break;
    float* d = &sums[0][0] + piece * C::kPieceSums;
    const PieceVectors vectors(piece, blocks, giver);
    if (has_scales) vectors.scale(d);
    if (has_bias) vectors.add_bias(d);
    u32(&pairs)[Held::kPairs] = held.pairs[C::kHolds ? piece : 0];
    if (C::kHoldsActivated) activate<C::kPieceN / 8>(d, p.gemm.activation);
    if (C::kHoldsActivated && makes_pairs(p.gemm)) round_swiglu<Result, C::kPieceN>(pairs, d);
    else round_piece<Result, C::kPieceN>(pairs, d, scale);
    if (!C::kHolds) giver.give(pairs);
  }
  if (C::kHolds) held.pieces = blocks * C::kPiecesN;
}

// Finishes any other tile, or this block's part of one: it leaves at once. All that becomes of a piece is compiled once. A ReduceScatter has
// neither activation nor a bias but that of its sum.
DEVICE void finish(const HopperParams& p, const Unit& unit, Sums& sums, u32 blocks, bool folded, Ring<C::kStages>& stages,
                   Giver& giver) {
  SlotStages slots{p, stages, giver.shared, giver.lane};
  const u32 pieces = blocks * C::kPiecesN, thread = threadIdx.x % 128;
  float* d = sums[0];
  // One scale for all is applied as sums are brought forward: that is nothing more to do.
  const bool has_scales = takes_scales(p, unit, folded);
  const float scale = has_scales ? 1.0f : one_scale(p);
  if (ELEMENT::kScaled) {
#pragma unroll
    for (int j = 0; j < C::kPieceSums; ++j) d[j] *= scale;
  }
  bool leaving = unit.parts > 1;  // a part's pieces leave for memory first, and again, summed, where the last part is
#pragma unroll 1
  for (u32 piece = 0; piece < pieces;) {
    if (leaving) {
      leave_piece(p, unit, d, piece, blocks, giver.group, thread);
    } else {
      const PieceVectors vectors(piece, blocks, giver);
      if (unit.parts > 1) sum_piece(p, unit, d, piece, blocks, giver.group, thread);
      if (has_scales) vectors.scale(d);
      if (folded) add_slots(p, slots, piece, d, giver.group, giver.warp);
      if (bias_of(p, folded) != 0) vectors.add_bias(d);
      u32 pairs[Held::kPairs];
      activate<C::kPieceN / 8>(d, p.gemm.activation);
      if (makes_pairs(p.gemm)) {
        round_swiglu<Result, C::kPieceN>(pairs, d);
        giver.give(pairs, true);
      } else {
        round_piece<Result, C::kPieceN>(pairs, d, 1.0f);
        giver.give(pairs);
      }
    }
    bring_forward<C::kPieces, C::kPieceSums>(d, ++piece, scale);
    if (leaving && piece == pieces) {
      if (!is_last_part(p, unit, giver.shared, giver.group, thread)) {
        giver.await();
        return giver.give(false);
      }
      leaving = false, piece = 0;
    }
  }
  while (folded && slots.first < parts_of(p, blocks)) slots.leave();
}
