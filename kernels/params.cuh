// What the host hands to a kernel. Mirrored field by field in crates/flux-launch/src/params.rs; the sizes are
// checked against each other by a test that needs no GPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A tensor map, as the driver encodes it.
struct alignas(64) TensorMap {
  u64 words[16];
};

// A block of at most TILE_M rows of the output, all of one shard: what it waits for and where it goes.
struct RowTile {
  u32 row;              // first row, in A and in C
  u32 rows;             // 1 ..= TILE_M
  u32 gate_begin;       // signals [gate_begin, gate_end) must have reached gate_epoch:
  u32 gate_end;         //   before A is loaded (AllGather), before the slot is written (ReduceScatter)
  u32 destination;      // ReduceScatter: index into `destinations` of the first that gets the tile
  u32 destination_row;  // ReduceScatter: first row in the destination's slot
  u32 signal;           // ReduceScatter: the signal, at each destination, of the block of rows that this tile is in
  u32 peer;             // the rank whose signal the gate waits for, for the fault record; ReduceScatter: of the first
                        //   signal, the next ranks' follow
  u32 counter;          // ReduceScatter: counts the tiles of the block of rows that are written
  u32 count;            //   up to this many; then it is 0 again, and the signal is raised
};

// Where this rank's partial tiles for one peer go: its own slot in the peer's memory, and its signals there.
struct Destination {
  u64 slot;     // result*, row pitch ldc
  u64 signals;  // u32*
};

// Every wait is bounded: the first one to expire writes the record, then raises the flag, and all others give up.
struct WaitBound {
  u64 record;  // Fault*, pinned host memory
  u64 flag;    // u32[2], device memory; [0] non-zero once a wait of this rank has expired, [1] elects who records it
  u64 budget_ns;
  u32 rank;
  u32 op;      // number of the operation, for the fault record
};

struct Fault {
  u32 state;  // 0: none, 1: written; stored last, with release
  u32 rank;
  u32 peer;
  u32 op;
  u32 tile;    // row tile << 16 | column tile
  u32 signal;  // index of the signal in its array
  u32 seen;
  u32 wanted;
};

// What is applied to a sum and its bias before they are rounded.
enum class Activation : u32 {
  none,
  gelu,    // x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2
  silu,    // x / (1 + exp(-x))
  swiglu,  // columns 2j and 2j + 1 become column j = silu(2j) * (2j + 1): C has n / 2 columns
};

// The sum of a ReduceScatter, in the epilogue of the tiles that this rank itself sums (SumParams: after the GEMM): out of
// the other sources' slots when their signals are up, and its own sums, rounded as if they came from a slot, in the order of
// the sources; then the bias.
struct FoldParams {
  u64 slots;            // result* [sources][slot_rows][ldc]; the own one is not read
  u64 bias;             // result* [n]; 0 for none
  u64 ld_out;           // row pitch of C [rows, n]: a tile's row there is its destination_row
  u32 sources;          // 0: nothing is folded
  u32 own;              // the destination whose tiles are summed here, and their place among the sources
  u32 slot_rows;
  u32 rows;
  u32 source_stride;    // the signal of (source, tile) is number source * source_stride + tile.signal of `gates`
  u32 epoch;            //   and must have reached this
};

struct GemmParams {
  u64 a, b, c;          // element*: A [rows, k], B [n, k]; result*: C [rows, n], in ReduceScatter of what is folded
  u64 lda, ldb, ldc;    // row pitches in elements; ldc is the slots' pitch in ReduceScatter
  u64 order;            // u32*: row tile << 16 | column tile, `tiles` of them
  u64 row_tiles;        // RowTile*
  u64 gates;            // u32*: the signals that the row tiles' gates name
  u64 destinations;     // Destination*
  u64 counters;         // u32*: all 0 between launches
  u64 bias;             // result* [n], added to every row; 0 for none, as in ReduceScatter
  u64 own_a;            // element* [own_rows, k]: AllGather: rows own_row .. own_row + own_rows of A are here, with pitch lda
  u32 own_row, own_rows;
  u32 m, n, k;
  u32 tiles;
  u32 gate_epoch;       // what a gate waits for: (signal - gate_epoch) as i32 >= 0
  u32 epoch;            // ReduceScatter: what a signal is raised to
  u32 destination_count;  // ReduceScatter: a tile goes to so many destinations, one behind the other in `destinations`
  Activation activation;  // none in ReduceScatter
  FoldParams fold;      // ReduceScatter
  WaitBound wait;
};

// What every sum of products of 8-bit elements is multiplied by: its row's scale of A, and its column's of B. The stride is 1,
// or 0 for one scale of the whole matrix. Without an address the scale is 1.
struct Scales {
  u64 a, b;  // float*
  u32 a_stride, b_stride;
};

// What the portable GEMM takes if its elements have scales.
struct ScaledGemmParams : GemmParams {
  Scales scales;
};

// How a tile's block of rows gets to a destination.
enum class PutWay : u32 {
  none,     // the tile itself is written there
  address,  // NVSHMEM has an address of the peer's memory: so its own puts would store there
  transfer, // by NVSHMEM's transport
};

// Where a block of rows of this rank's tiles for one peer goes, out of the destination's `slot`, which is this rank's own memory.
struct PutRoute {
  u64 slot;     // result*: as `way` says, an address of the peer's slot, or of the same place in this rank's symmetric memory
  u64 signals;  // u64*: likewise, the peer's, one for each block of rows
  u32 pe;       // the peer, to NVSHMEM
  PutWay way;
};

// What a GEMM takes that puts by itself.
struct PutParams {
  u64 routes;       // PutRoute*: of each destination
  u32 block_rows;   // of a shard, that have one signal
  u32 world_size;   // the shards' rows differ by one at most, the first ones have one more
  u32 set;          // NVSHMEM_SIGNAL_SET
  u32 reserved;
};

// Two blocks load together what their tiles have in common, each a half of it for both: the units of the order are then in
// pairs, with as many blocks of K each.
enum class Sharing : u32 {
  none,
  a,  // of tiles of the same rows
  b,  // of tiles of the same columns
};

// What the Hopper GEMM takes: tensor maps of A, B, C and the slots, the tiles, and how tiles are split along K.
struct HopperParams {
  TensorMap a, b;       // boxes of 128 bytes of a row; of a_box_rows rows of A, b_box_rows rows of B
  TensorMap own_a;      // as a; of the rows that are elsewhere
  TensorMap c;          // boxes of PIECE_N columns (half of them for SwiGLU), 64 rows; ReduceScatter: if tiles are folded
  TensorMap slots[2];   // of the sources before this rank and behind it, if tiles are folded: boxes of PIECE_N columns, a part's rows,
                        //   and all of these sources
  GemmParams gemm;
  u64 destination_maps; // ReduceScatter: TensorMap* of each destination's slot, boxes as for C
  u64 partials;         // float*: the parts of split tiles
  u64 arrivals;         // u32*: how many parts of each split tile have come; all 0 between launches
  u32 split_tiles;      // the last tiles of the order, which are split along K
  u32 parts;            // of each of them; at least 1, at most the blocks of K
  u32 a_box_rows;       // fewer than a tile's if A has fewer, or a tile takes several boxes
  u16 by_rows;          // C cannot be written in boxes
  u16 is_row;           // one row tile, which begins at row 0 and has no gate before its loads, in the order of its columns:
                        //   neither order nor row tile need be looked up
  Scales scales;        // of elements that have any
  u32 slot_parts;       // parts of a tile whose slots come into a stage together, if tiles are folded
  u32 tile_columns;     // of a tile, at most TILE_N: what is multiplied beyond them is not stored
  u32 b_box_rows;
  u16 a_boxes, b_boxes; // of a whole tile; even for what is shared
  Sharing sharing;      // what two blocks that make a cluster load together; none: there are no clusters
  u32 lets_next_begin;  // the next kernel's blocks may come while this one still computes
  u32 part_shift;       // a part has 64 rows, as a piece, or 32: 6 or 5
};

// The sum of the slots, in rank order: out[row, col] = sum over source of slots[source][row, col], + bias[col].
struct SumParams {
  u64 slots;            // element* [world_size][slot rows][ld_slot]
  u64 source_pitch;     // elements between two sources' slots
  u64 ld_slot;
  u64 out;              // element* [rows, n]
  u64 ld_out;
  u64 bias;             // element* [n]; 0 for none
  u64 signals;          // u32*: the signal of (source, row) is at
  u32 source_stride;    //   source * source_stride + row / signal_rows
  u32 signal_rows;
  u32 rows, n;
  u32 world_size;
  u32 epoch;
  WaitBound wait;
};

// What a rank knows of one peer that it pushes its shard to.
struct PushPeer {
  u64 gathered;         // the peer's gathered rows
  u64 signals;          // u32*: the peer's signals of this rank's chunks; 0 if they are not to be raised
  u64 arrived;          // u32*: the peer's signal of this rank's whole shard; 0 likewise
};

// A rank's shard on its way to all its peers.
struct PushParams {
  u64 shard;            // all addresses and sizes are multiples of 16 bytes
  u64 offset;           // from the begin of the gathered rows, of the shard's place among them
  u64 bytes;
  u64 chunk_bytes;      // the last chunk may be shorter
  u64 peers;            // PushPeer*, in the order in which they are served
  u64 counters;         // u32* [peer_count][chunks]: all 0 between launches
  u32 peer_count;
  u32 chunks;
  u32 epoch;            // what signals are raised to
  u32 by_shard;         // not each chunk's signal is raised, but the whole shard's
};

// Where the time goes.
struct ClockParams {
  u64 time;             // u64*, pinned host memory
};
