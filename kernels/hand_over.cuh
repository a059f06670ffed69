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
  // The storer's turn; if not `kept`, there are no pieces.
  DEVICE_METHOD void give(bool kept) {
    if (lane == 0 && warp == 0) store_shared_4(shared + Layout::kKept + 4 * buffer(), kept);
    fence_shared_to_copies();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Layout::kReady + 8 * buffer());
    ring.next();
  }
};

// Whether a tile's sums need only be scaled and rounded.
DEVICE bool is_plain(const HopperParams& p, const Unit& unit, bool folded) {
  return unit.parts == 1 && !folded && p.gemm.bias == 0 && p.gemm.activation == Activation::none;
}

// What all sums are multiplied by, if they have one scale.
DEVICE float one_scale(const HopperParams& p) {
  return ELEMENT::kScaled ? first_scale(p.scales.a) * first_scale(p.scales.b) : 1.0f;
}

// A plain tile that is held in registers, rounded, and leaves while the next one is multiplied.
struct Held {
  static const int kPairs = C::kPieceN / 4;  // registers of a piece
  u32 pieces = 0;                            // that have not left
  u32 pairs[C::kHolds ? C::kPieces * kPairs : 1];

  DEVICE_METHOD void take(const HopperParams& p, const Unit& unit, Sums& sums, u32 blocks, const Giver& giver) {
    if constexpr (C::kHolds) {
      float* d = &sums[0][0];
      if (takes_scales(p, unit)) {
#pragma unroll
        for (int piece = 0; piece < C::kPieces; ++piece) {
          scale_piece(d + piece * C::kPieceSums, piece, blocks, giver.shared, giver.group, giver.warp, giver.lane);
        }
        round(d, 1.0f);
      } else {
        round(d, one_scale(p));
      }
      pieces = blocks * C::kPiecesN;
    }
  }
  DEVICE_METHOD void round(const float* d, float scale) {
#pragma unroll
    for (int i = 0; i < C::kPieces * kPairs; ++i) pairs[i] = Result::round_pair(d[2 * i] * scale, d[2 * i + 1] * scale);
  }
  // Nothing is held: or the compiler would keep what was, for it sees no connection between `pieces` and `pairs`.
  DEVICE_METHOD void forget() {
#pragma unroll
    for (u32& pair : pairs) asm volatile("" : "=r"(pair));
  }
  DEVICE_METHOD void give_piece(Giver& giver) {
    if constexpr (C::kHolds) {
      lay_out<C::kPieceN>(pairs, giver.await(), giver.warp, giver.lane);
      giver.give(true);
      --pieces;
#pragma unroll
      for (int i = 0; i + kPairs < C::kPieces * kPairs; ++i) pairs[i] = pairs[i + kPairs];
    }
  }
  DEVICE_METHOD void give(Giver& giver) {
#pragma unroll 1
    while (pieces > 0) give_piece(giver);
  }
};

// Whether a unit has so many blocks of K that the pieces of the tile before leave meanwhile.
DEVICE bool has_time_for_pieces(const Unit& unit) { return unit.end - unit.begin > C::kPieces; }

// Hands a plain tile over at once, where it cannot be held. This is compiled for each piece: no sums are moved.
DEVICE void hand_over_plain(const HopperParams& p, const Unit& unit, Sums& sums, u32 blocks, Giver& giver) {
  const bool takes = takes_scales(p, unit);
  const float scale = takes ? 1.0f : one_scale(p);
#pragma unroll
  for (int piece = 0; piece < C::kPieces; ++piece) {
    if (piece == C::kPiecesN && blocks == 1) break;
    if (takes) scale_piece(&sums[0][0] + piece * C::kPieceSums, piece, blocks, giver.shared, giver.group, giver.warp, giver.lane);
    lay_out<Result, C::kPieceN>(&sums[0][0] + piece * C::kPieceSums, scale, giver.await(), giver.warp, giver.lane);
    giver.give(true);
  }
}

// Scales what was not scaled before, folds the slots in if the tile is folded, adds the bias, applies the activation, rounds, and
// hands a piece over. A ReduceScatter has neither activation nor a bias but that of its sum.
DEVICE void finish_piece(const HopperParams& p, const Unit& unit, float* d, u32 piece, u32 blocks, bool folded, SlotStages& slots,
                         Giver& giver) {
  const u32 warp = giver.warp, lane = giver.lane, group = giver.group;
  if (takes_scales(p, unit)) scale_piece(d, piece, blocks, giver.shared, group, warp, lane);
  if (folded) add_slots(p, slots, piece, d, group, warp);
  const u64 bias = folded ? p.gemm.fold.bias : p.gemm.bias;
  if (bias != 0) {
    const u32 column = first_column_of(p, entry_of(p, unit.tile), group) + piece % C::kPiecesN * C::kPieceN + 2 * (lane % 4);
    add_bias<Result, C::kPieceN / 8>(d, bias, p.gemm.n, column);
  }
  activate<C::kPieceN / 8>(d, p.gemm.activation);
  const u32 to = giver.await();
  if (p.gemm.activation == Activation::swiglu) lay_out_pairs<Result, C::kPieceN>(d, to, warp, lane);
  else lay_out<Result, C::kPieceN>(d, 1.0f, to, warp, lane);
  giver.give(true);
}

// Hands any other tile over, or this block's part of one.
DEVICE void hand_over(const HopperParams& p, const Unit& unit, Sums& sums, u32 blocks, bool folded, Ring<C::kStages>& stages,
                      Giver& giver) {
  SlotStages slots{p, stages, giver.shared, giver.lane};
  const u32 pieces = blocks * C::kPiecesN, thread = threadIdx.x % 128;
  // One scale for all is applied as sums are brought forward: that is nothing more to do.
  const float scale = takes_scales(p, unit) ? 1.0f : one_scale(p);
  if (ELEMENT::kScaled) {
#pragma unroll
    for (int j = 0; j < C::kPieceSums; ++j) sums[0][j] *= scale;
  }
  bool leaving = unit.parts > 1;  // a part's pieces leave for memory first, and again, summed, where the last part is
#pragma unroll 1
  for (u32 piece = 0; piece < pieces;) {
    if (leaving) {
      leave_piece(p, unit, sums[0], piece, blocks, giver.group, thread);
    } else {
      if (unit.parts > 1) sum_piece(p, unit, sums[0], piece, blocks, giver.group, thread);
      finish_piece(p, unit, sums[0], piece, blocks, folded, slots, giver);
    }
    bring_forward<C::kPieces, C::kPieceSums>(sums[0], ++piece, scale);
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
