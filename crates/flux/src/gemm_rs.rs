//! GEMM + ReduceScatter: C_r [M_r, N] = rows r of Σ over ranks of A_s · B_sᵀ.
//!
//! *The schedule decides, for each tile, what it waits for and where it goes; so communication starts when the first
//! tile ends.* Here: tiles are computed destination by destination, from the next rank around to the own one, and each
//! goes straight into this rank's slot at its owner. The owner sums its slots in rank order: same inputs, same bits,
//! whatever the timing. Each rank's partial sum is accumulated in fp32 and rounded to the element type once; the owner sums
//! these in fp32 and rounds once more. In f16, a partial sum beyond 65,504 overflows even if the whole does not.

use crate::call::{self, OpState, Phase, Phased, check_call, kernel_size};
use crate::plan::{self, Path, PathChoice};
use crate::schedules::Schedules;
use crate::{Group, Matrix, OpSpec, Result};
use flux_launch::{Destination, GemmParams, Policy, ScheduleTables, SumParams};
use flux_memory::{Address, Buffer, Placement, Stream};
use flux_swizzle::{Shards, TileOrder, TileShape};
use flux_transport::{PeerCopy, Scatter, ScatterSpec};

/// Slots' rows begin at multiples of 16 bytes, so that tiles are written and summed in full lines.
const PITCH_ELEMENTS: usize = 8;

/// GEMM + ReduceScatter, built once for a layer and called with any number of rows up to its maximum.
#[derive(Debug)]
pub struct GemmRs {
    spec: OpSpec,
    op: u32,
    chunk_rows: usize,
    tile: TileShape,
    pitch: usize,
    column_tiles: usize,
    weight_shards: Shards,
    scatter: Scatter,
    state: OpState,
    /// Each rank's `Destination[world_size]`.
    destinations: Vec<Buffer>,
    /// Last, so that it is dropped last: its kernels are unloaded when all that runs has ended.
    group: Group,
}

/// One rank's part of a call.
#[derive(Clone, Copy, Debug)]
pub struct GemmRsCall {
    /// Rows of A; the same on every rank.
    pub m: usize,
    /// The rank's columns of A, `[m, K_r]`: `K_r` is [`GemmRs::depth`].
    pub a: Matrix,
    /// The rank's columns of the weight, `[N, K_r]`.
    pub b: Matrix,
    /// The rank's rows of the result, `[m_r, N]`: `m_r` is [`GemmRs::rows`].
    pub c: Matrix,
}

impl GemmRs {
    /// Allocates, for every rank, the slots (`max_m · N` elements), the same again for partial sums unless all calls are
    /// fused, the signals and the schedules, and loads the kernels. Calls allocate nothing on a GPU.
    pub fn new(group: &Group, spec: OpSpec) -> Result<Self> {
        let world_size = group.world_size();
        kernel_size("the number of rows", spec.max_m)?;
        kernel_size("n", spec.n)?;
        kernel_size("k", spec.k)?;
        let tile = group.launcher(0).tile(spec.dtype)?;
        let shards = Shards::new(spec.max_m, world_size)?;
        let pitch = spec.n.next_multiple_of(PITCH_ELEMENTS);
        let row_bytes = pitch * spec.dtype.bytes();
        let chunk_rows =
            spec.chunk_rows.unwrap_or_else(|| plan::chunk_rows(row_bytes, tile, shards.max_rows()));
        let column_tiles = spec.n.div_ceil(tile.columns);
        let op = group.register(format!("gemm-rs (n {}, k {})", spec.n, spec.k));
        let scatter = Scatter::new(
            Box::new(PeerCopy),
            group.members(),
            ScatterSpec {
                max_rows: spec.max_m,
                row_bytes,
                chunk_rows,
                tiles: shards.max_rows().div_ceil(tile.rows) * column_tiles,
                with_partial: spec.path != plan::PathPreference::Fused,
                direction: spec.direction,
                placement: group.config().peer_memory,
                op,
                signal_loss: group.config().signal_loss,
            },
        )?;
        let (mut schedules, mut destinations) = (Vec::new(), Vec::new());
        for rank in group.local_ranks() {
            group.launcher(rank).prepare(spec.dtype, &[Policy::Plain, Policy::ReduceScatter])?;
            let device = group.device(rank)?;
            let largest = TileOrder::reduce_scatter(shards, rank, tile, spec.n)?;
            schedules.push(Schedules::new(device, &largest)?);
            let table: Vec<_> = (0..world_size)
                .map(|peer| Destination {
                    slot: scatter.slot(peer, rank),
                    signals: scatter.tile_signals(peer, rank),
                })
                .collect();
            let table: &[u8] = bytemuck::cast_slice(&table);
            let buffer = Buffer::allocate(device, table.len(), Placement::Device)?;
            buffer.upload(&device.stream()?, 0, table)?;
            destinations.push(buffer);
        }
        let weight_shards = Shards::new(spec.k, world_size)?;
        Ok(Self {
            spec,
            op,
            chunk_rows,
            tile,
            pitch,
            column_tiles,
            weight_shards,
            scatter,
            state: OpState::new(schedules),
            destinations,
            group: group.clone(),
        })
    }

    pub(crate) const fn group(&self) -> &Group {
        &self.group
    }

    /// What it was built for.
    pub const fn spec(&self) -> &OpSpec {
        &self.spec
    }

    /// The rows of C that `rank` receives in a call with `m` rows.
    pub fn rows(&self, rank: usize, m: usize) -> std::ops::Range<usize> {
        Shards::new(m, self.state.world_size()).map_or(0..0, |shards| shards.range(rank))
    }

    /// The columns of A and of the weight that `rank` holds.
    pub fn depth(&self, rank: usize) -> std::ops::Range<usize> {
        self.weight_shards.range(rank)
    }

    /// The tile that the GEMM computes.
    pub const fn tile(&self) -> TileShape {
        self.tile
    }

    /// Rows in which a shard travels on the unfused way.
    pub const fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// `rank`'s slots `[world_size, rows of the largest shard, pitch]`, into which its peers write.
    pub fn slots(&self, rank: usize) -> Address {
        self.scatter.slot(rank, 0)
    }

    /// Size in bytes of the buffer at [`GemmRs::slots`].
    pub fn slots_bytes(&self) -> usize {
        self.state.world_size() * self.scatter.slot_rows() * self.pitch * self.spec.dtype.bytes()
    }

    /// Enqueues `rank`'s part of a call on `stream`: afterwards, in stream order, C is complete and A may be overwritten.
    /// It never waits on the host. An expired wait is reported by the next call, or by [`Group::check`]. Ranks that share
    /// a GPU are called together, with [`GemmRs::enqueue_all`].
    ///
    /// # Safety
    /// The matrices are live, of the extents that [`GemmRsCall`] says, and reachable by the rank's device, until `stream`
    /// has passed this call; nobody else accesses C, or writes to A or B, meanwhile. The group outlives the stream's work.
    pub unsafe fn enqueue(&self, rank: usize, call: &GemmRsCall, stream: &Stream) -> Result<PathChoice> {
        self.group.check_alone(rank)?;
        // SAFETY: the caller's promise.
        unsafe { call::one(self, rank, call, stream) }
    }

    /// Enqueues the parts of all ranks of this process, rank by rank, each on its own of `streams`.
    ///
    /// # Safety
    /// As for [`GemmRs::enqueue`], for every rank.
    pub unsafe fn enqueue_all(&self, calls: &[GemmRsCall], streams: &[&Stream]) -> Result<PathChoice> {
        // SAFETY: the caller's promise.
        unsafe { call::all(self, calls, streams) }
    }
}

impl Phased for GemmRs {
    type Call = GemmRsCall;

    fn group(&self) -> &Group {
        &self.group
    }

    fn state(&self) -> &OpState {
        &self.state
    }

    fn settle(&self) {
        self.scatter.settle();
    }

    fn check(&self, rank: usize, call: &GemmRsCall, stream: &Stream) -> Result<(usize, PathChoice)> {
        check_call(&self.group, &self.spec, rank, call.m, stream)?;
        let (n, depth, dtype) = (self.spec.n, self.depth(rank).len(), self.spec.dtype);
        call.a.check("A", call.m, depth, dtype)?;
        call.b.check("B", n, depth, dtype)?;
        call.c.check("C", self.rows(rank, call.m).len(), n, dtype)?;
        let shards = Shards::new(call.m, self.state.world_size())?;
        Ok((call.m, plan::choose(self.spec.path, &shards, self.tile)))
    }

    unsafe fn phase(
        &self,
        phase: Phase,
        (rank, epoch, path): (usize, u32, Path),
        call: &GemmRsCall,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match (phase, path) {
                (Phase::Begin, Path::Local) => {
                    self.launch(rank, epoch, call, call.c, path, schedules, stream)
                }
                (_, Path::Local) => Ok(()),
                (Phase::Begin, _) => {
                    self.scatter.begin(rank, stream)?;
                    let partial = Matrix::contiguous(self.scatter.partial(rank), self.pitch);
                    match path {
                        Path::CommunicationOnly => {}
                        Path::Chunked => {
                            return self.launch_by_shard(rank, epoch, call, partial, schedules, stream);
                        }
                        _ => self.launch(rank, epoch, call, partial, path, schedules, stream)?,
                    }
                    if path != Path::Fused {
                        self.scatter.stage(rank, epoch, stream)?;
                    }
                    Ok(())
                }
                (Phase::Transfer, Path::Fused) => Ok(()),
                (Phase::Transfer, Path::Chunked) => {
                    Ok(self.scatter.transfer_rest(rank, epoch, call.m, stream)?)
                }
                (Phase::Transfer, _) => Ok(self.scatter.transfer(rank, epoch, call.m, stream)?),
                (Phase::Finish, _) => {
                    self.sum(rank, epoch, call, path, stream)?;
                    Ok(self.scatter.release(rank, epoch, stream)?)
                }
            }
        }
    }
}

impl GemmRs {
    /// A GEMM for each destination, from the next rank around to this one, each followed by its transfer.
    ///
    /// # Safety
    /// As for [`GemmRs::enqueue`].
    unsafe fn launch_by_shard(
        &self,
        rank: usize,
        epoch: u32,
        call: &GemmRsCall,
        partial: Matrix,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let (world_size, dtype) = (self.state.world_size(), self.spec.dtype);
        for destination in (1..=world_size).map(|step| (rank + step) % world_size) {
            let rows = self.rows(destination, call.m);
            let part = GemmRsCall { m: rows.len(), a: call.a.rows_from(rows.start, dtype), ..*call };
            let partial = partial.rows_from(rows.start, dtype);
            // SAFETY: the caller's promise, for these rows.
            unsafe {
                self.launch(rank, epoch, &part, partial, Path::Chunked, schedules, stream)?;
                self.scatter.stage_shard(rank, destination, epoch, call.m, stream)?;
            }
        }
        Ok(())
    }

    /// The GEMM: into the owners' slots if fused (of `c`, only the pitch counts), else into `c`.
    ///
    /// # Safety
    /// As for [`GemmRs::enqueue`].
    #[allow(clippy::too_many_arguments)]
    unsafe fn launch(
        &self,
        rank: usize,
        epoch: u32,
        call: &GemmRsCall,
        c: Matrix,
        path: Path,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()> {
        let fused = path == Path::Fused;
        let policy = if fused { Policy::ReduceScatter } else { Policy::Plain };
        let launcher = self.group.launcher(rank);
        let tables = || if fused { self.fused_tables(rank, call.m) } else { self.plain_tables(call.m) };
        let params = GemmParams {
            a: call.a.address,
            b: call.b.address,
            c: c.address,
            lda: call.a.pitch as u64,
            ldb: call.b.pitch as u64,
            ldc: c.pitch as u64,
            gates: self.scatter.gates(rank),
            destinations: self.destinations[rank].address(),
            n: kernel_size("n", self.spec.n)?,
            k: kernel_size("k", self.depth(rank).len())?,
            gate_epoch: epoch.wrapping_sub(1), // the owner has summed the call before
            epoch,
            wait: self.group.members().faults[rank].bound(self.op),
            ..GemmParams::default()
        };
        schedules.with(stream, (call.m, fused), tables, |schedule| {
            let (order, row_tiles, tiles) = (schedule.order(), schedule.row_tiles(), schedule.tiles());
            let params = GemmParams { order, row_tiles, tiles, ..params };
            // SAFETY: the caller's promise for the matrices; the rest belongs to this op.
            Ok(unsafe { launcher.gemm(stream, policy, self.spec.dtype, &params) }?)
        })
    }

    /// The sum of the rank's slots, each tile when its signals are up: one per tile if fused, else one per source.
    ///
    /// # Safety
    /// As for [`GemmRs::enqueue`].
    unsafe fn sum(
        &self,
        rank: usize,
        epoch: u32,
        call: &GemmRsCall,
        path: Path,
        stream: &Stream,
    ) -> Result<()> {
        let row_tiles = self.scatter.slot_rows().div_ceil(self.tile.rows);
        let (signals, source_stride, row_stride, column_stride) = match path {
            Path::Fused => (self.scatter.gates(rank), row_tiles * self.column_tiles, self.column_tiles, 1),
            _ => (self.scatter.arrived(rank), 1, 0, 0),
        };
        let params = SumParams {
            slots: self.scatter.slot(rank, 0),
            source_pitch: (self.scatter.slot_rows() * self.pitch) as u64,
            ld_slot: self.pitch as u64,
            out: call.c.address,
            ld_out: call.c.pitch as u64,
            signals,
            source_stride: kernel_size("the number of tiles", source_stride)?,
            row_stride: kernel_size("the number of tiles", row_stride)?,
            column_stride,
            rows: kernel_size("the number of rows", self.rows(rank, call.m).len())?,
            n: kernel_size("n", self.spec.n)?,
            world_size: kernel_size("the world size", self.state.world_size())?,
            epoch,
            wait: self.group.members().faults[rank].bound(self.op),
            ..SumParams::default()
        };
        // SAFETY: the caller's promise for C; the rest belongs to this op.
        Ok(unsafe { self.group.launcher(rank).sum(stream, self.spec.dtype, &params) }?)
    }

    /// Destination by destination, from the next rank around to this one; a tile waits until its owner has summed what
    /// its slot held before.
    fn fused_tables(&self, rank: usize, m: usize) -> Result<ScheduleTables> {
        let shards = Shards::new(m, self.state.world_size())?;
        let order = TileOrder::reduce_scatter(shards, rank, self.tile, self.spec.n)?;
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(ScheduleTables::new(&order, |tile, entry| {
            let gate = self.scatter.gate(tile.shard);
            (entry.gate_begin, entry.gate_end) = (number(gate), number(gate + 1));
            entry.destination = number(tile.shard);
            entry.peer = number(tile.shard);
            entry.destination_row = number(tile.rows.start - shards.range(tile.shard).start);
            entry.signal = number(tile.index * self.column_tiles);
        })?)
    }

    fn plain_tables(&self, m: usize) -> Result<ScheduleTables> {
        let order = TileOrder::plain(m, self.tile, self.spec.n)?;
        Ok(ScheduleTables::new(&order, |_, _| {})?)
    }
}
