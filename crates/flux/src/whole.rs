//! Whole matrices in host memory, cut up for the ranks and put together again: for trying an operation out and for checking
//! it. Between ranks' calls nothing goes through here. Among processes, each has the whole matrices and cuts out its rank's
//! parts, and the result comes together through shared memory of the host.

use crate::{
    Buffer, Element, Error, Group, Matrix, OperandParts, Operation, Part, PathChoice, Placement, Result,
    Scale, Scales, Stream,
};
use flux_memory::{Peers, PerRank, SymmetricBuffer};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Elements on each side of an output that nobody may write to; they are checked.
const GUARD: usize = 64;

/// The operands of a call, placed on the ranks' devices. The output is poisoned with NaN.
#[derive(Debug)]
pub struct Whole<'op, E, Op> {
    group: Group,
    op: &'op Op,
    m: usize,
    ranks: PerRank<Rank>,
    element: PhantomData<E>,
}

#[derive(Debug)]
struct Rank {
    stream: Arc<Stream>,
    operands: OperandParts,
    a_rows: Range<usize>,
    b_rows: Range<usize>,
    c_part: Part,
    c_buffer: Buffer,
    /// What the operands are in, but for C.
    buffers: Vec<Buffer>,
}

impl<'op, E: Element, Op: Operation> Whole<'op, E, Op> {
    /// Places `a` `[m, k]` and `b` `[n, k]`.
    pub fn place(group: &Group, op: &'op Op, a: &[E], b: &[E], m: usize) -> Result<Self> {
        let k = op.spec().k;
        check_len("A", a.len(), m, k)?;
        Self::with_a(group, op, b, m, |rank, part| {
            let stream = Arc::new(group.stream(rank)?);
            let buffer = upload(group, rank, &stream, &part.cut(a, k))?;
            Ok((stream, Matrix::contiguous(buffer.address(), part.columns.len()), Some(buffer)))
        })
    }

    /// Places `b` `[n, k]`; each rank's part of A is what `before` has left in its part of C: one operation's output is
    /// the next one's input, on the device, in the order of the same streams.
    pub fn after<F: Element<Result = E>, Before: Operation>(
        group: &Group,
        op: &'op Op,
        before: &'op Whole<'_, F, Before>,
        b: &[E],
    ) -> Result<Self> {
        Self::with_a(group, op, b, before.m, |rank, part| match before.ranks.get(rank) {
            Some(previous) if previous.c_part == *part => {
                Ok((Arc::clone(&previous.stream), previous.operands.c, None))
            }
            previous => {
                let found = previous.map(|previous| &previous.c_part);
                let reason = format!("rank {rank} needs {part:?}, but the operation before left {found:?}");
                Err(Error::BadMatrix { name: "A", reason })
            }
        })
    }

    fn with_a(
        group: &Group,
        op: &'op Op,
        b: &[E],
        m: usize,
        mut a: impl FnMut(usize, &Part) -> Result<(Arc<Stream>, Matrix, Option<Buffer>)>,
    ) -> Result<Self> {
        let (n, k) = (op.spec().n, op.spec().k);
        check_len("B", b.len(), n, k)?;
        if E::DTYPE != op.spec().dtype {
            return Err(Error::WrongDType { built: op.spec().dtype, given: E::DTYPE });
        }
        let place = |rank| {
            let [a_part, b_part, c_part] = op.parts(rank, m);
            let (stream, a, a_buffer) = a(rank, &a_part)?;
            let b_buffer = upload(group, rank, &stream, &b_part.cut(b, k))?;
            let b = Matrix::contiguous(b_buffer.address(), b_part.columns.len());
            let c_len = c_part.len().saturating_add(2 * GUARD);
            let c_buffer = poisoned::<E::Result>(group, rank, &stream, c_len)?;
            let c_address = c_buffer.address().add(GUARD * size_of::<E::Result>());
            let c = Matrix::contiguous(c_address, c_part.columns.len());
            let buffers = a_buffer.into_iter().chain([b_buffer]).collect();
            let (a_rows, b_rows) = (a_part.rows, b_part.rows);
            let operands = OperandParts::new([a, b, c]);
            Ok::<_, Error>(Rank { stream, operands, a_rows, b_rows, c_part, c_buffer, buffers })
        };
        let ranks = PerRank::try_new(group.local_ranks(), place)?;
        Ok(Self { group: group.clone(), op, m, ranks, element: PhantomData })
    }

    /// Places `bias` `[n]`, for calls from now on.
    pub fn with_bias(mut self, bias: &[E::Result]) -> Result<Self> {
        let n = self.op.spec().n;
        if bias.len() != n {
            return Err(Error::BadBias {
                reason: format!("{} elements were given for {n} rows", bias.len()),
            });
        }
        for (index, rank) in self.group.local_ranks().zip(self.ranks.iter_mut()) {
            let buffer = upload(&self.group, index, &rank.stream, &bias[rank.b_rows.clone()])?;
            rank.operands.bias = Some(buffer.address());
            rank.buffers.push(buffer);
        }
        Ok(self)
    }

    /// Places scales of A and B, for calls from now on: each is empty for none, one number for the whole matrix, or one for each
    /// of its rows, `[m]` or `[n]`.
    pub fn with_scales(mut self, a: &[f32], b: &[f32]) -> Result<Self> {
        let (group, m, n) = (&self.group, self.m, self.op.spec().n);
        for (index, rank) in group.local_ranks().zip(self.ranks.iter_mut()) {
            let mut place = |name, scales: &[f32], rows: usize, own: &Range<usize>| {
                let own = match scales.len() {
                    0 => return Ok(None),
                    1 => scales,
                    len if len == rows => &scales[own.clone()],
                    len => {
                        let reason = format!("{len} numbers were given for {rows} rows");
                        return Err(Error::BadScale { name, reason });
                    }
                };
                let buffer = upload(group, index, &rank.stream, own)?;
                let address = buffer.address();
                rank.buffers.push(buffer);
                Ok(Some(if scales.len() == 1 { Scale::Tensor(address) } else { Scale::Rows(address) }))
            };
            let a = place("A", a, m, &rank.a_rows)?;
            let b = place("B", b, n, &rank.b_rows)?;
            rank.operands.scales = Scales { a, b };
        }
        Ok(self)
    }

    /// Enqueues one call of all ranks of this process.
    pub fn enqueue(&self) -> Result<PathChoice> {
        let parts: Vec<_> = self.ranks.iter().map(|rank| rank.operands).collect();
        let streams: Vec<_> = self.streams().collect();
        // SAFETY: the matrices have the extents of their parts, and live until this is dropped, which waits.
        unsafe { self.op.enqueue_parts(self.m, &parts, &streams) }
    }

    /// The streams of this process's ranks, in rank order.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.ranks.iter().map(|rank| &*rank.stream)
    }

    /// Waits on this thread until all ranks of this process have ended, and reports the first wait that expired.
    pub fn synchronize(&self) -> Result<()> {
        let ended = self.ranks.iter().try_for_each(|rank| rank.stream.synchronize());
        self.group.check()?; // says more than a stream does, if something is wrong
        Ok(ended?)
    }

    /// Waits for all ranks and puts C `[m, n]` (`[m, n / 2]` with SwiGLU) together; NaN where no call has written yet.
    /// Ranks that hold the same part must hold the same bits. Among processes it is collective, and gives every rank the whole.
    pub fn result(&self) -> Result<Vec<E::Result>> {
        let n = self.op.result_columns();
        let mut whole = zeroed::<E::Result>(self.m.saturating_mul(n))?;
        let mut first: Option<(Part, Vec<E::Result>)> = None;
        self.each_part(|rank, place, part| {
            match &first {
                Some((first_place, first)) if *first_place == place => {
                    let same = bytemuck::cast_slice::<E::Result, u8>(first)
                        == bytemuck::cast_slice::<E::Result, u8>(part);
                    if !same {
                        return Err(Error::RanksDiffer { rank, other: 0 });
                    }
                }
                _ => place.paste(part, &mut whole, n),
            }
            first.get_or_insert_with(|| (place, part.to_vec()));
            Ok(())
        })?;
        Ok(whole)
    }

    /// Shows `each` rank's part of C, and where it belongs, in rank order.
    fn each_part(&self, mut each: impl FnMut(usize, Part, &[E::Result]) -> Result<()>) -> Result<()> {
        match self.group.members().space.peers() {
            Some(peers) => {
                peers.together("put the result together", || self.each_part_among(peers, &mut each))
            }
            None => {
                self.synchronize()?;
                let mut ranks = self.ranks.pairs();
                ranks.try_for_each(|(index, rank)| each(index, rank.c_part.clone(), &rank.c(index)?))
            }
        }
    }

    fn each_part_among(
        &self,
        peers: &Peers,
        mut each: impl FnMut(usize, Part, &[E::Result]) -> Result<()>,
    ) -> Result<()> {
        self.synchronize()?;
        let place = |rank| {
            let [_, _, c] = self.op.parts(rank, self.m);
            c
        };
        let largest = (0..self.group.world_size()).map(|rank| place(rank).len()).max().unwrap_or(0);
        let bytes = largest.saturating_mul(size_of::<E::Result>());
        let space = self.group.members().space.on_host();
        if !space.reach().is_complete() {
            return self.each_part_told(peers, bytes, place, each);
        }
        let shown = SymmetricBuffer::allocate(&space, bytes, Placement::Device)?;
        for (index, rank) in self.ranks.pairs() {
            let c = rank.c::<E::Result>(index)?;
            // SAFETY: this rank's own memory, large enough for its part, which nobody reads yet.
            unsafe {
                std::ptr::copy_nonoverlapping(c.as_ptr(), shown.address(index).as_ptr(), c.len());
            }
        }
        peers.exchange("show their parts", Ok(Vec::new()))?;
        for rank in 0..self.group.world_size() {
            let place = place(rank);
            // SAFETY: the rank has written its part, as this long, and writes no more; elements may be any bits.
            let part = unsafe { std::slice::from_raw_parts(shown.address(rank).as_ptr(), place.len()) };
            each(rank, place, part)?;
        }
        Ok(())
    }
}

impl<E: Element, Op: Operation> Whole<'_, E, Op> {
    /// Across nodes: in pieces through the channel that the group was formed by.
    fn each_part_told(
        &self,
        peers: &Peers,
        largest_bytes: usize,
        place: impl Fn(usize) -> Part,
        mut each: impl FnMut(usize, Part, &[E::Result]) -> Result<()>,
    ) -> Result<()> {
        const PIECE_BYTES: usize = 256 << 10;
        let mut own = Vec::new();
        for (index, rank) in self.ranks.pairs() {
            own = bytemuck::cast_slice(&rank.c::<E::Result>(index)?).to_vec();
        }
        let mut parts = vec![Vec::new(); self.group.world_size()];
        for begin in (0..largest_bytes).step_by(PIECE_BYTES) {
            let piece = &own[begin.min(own.len())..(begin + PIECE_BYTES).min(own.len())];
            let pieces = peers.exchange("tell a part of the result", Ok(piece.to_vec()))?;
            parts.iter_mut().zip(pieces).for_each(|(part, piece)| part.extend(piece));
        }
        for (rank, bytes) in parts.iter().enumerate() {
            let place = place(rank);
            let mut part = zeroed::<E::Result>(place.len())?;
            let room: &mut [u8] = bytemuck::cast_slice_mut(&mut part);
            if room.len() != bytes.len() {
                return Err(Error::RanksDiffer { rank, other: self.group.local_ranks().start });
            }
            room.copy_from_slice(bytes);
            each(rank, place, &part)?;
        }
        Ok(())
    }
}

impl Rank {
    /// Its part of C, after checking that nothing was written beside it.
    fn c<R: Element>(&self, rank: usize) -> Result<Vec<R>> {
        let len = self.c_part.len();
        let mut c = zeroed::<R>(len + 2 * GUARD)?;
        self.c_buffer.download(&self.stream, 0, bytemuck::cast_slice_mut(&mut c))?;
        let mut guards = [0.0; 2 * GUARD];
        R::widen(&c[..GUARD], &mut guards[..GUARD]);
        R::widen(&c[GUARD + len..], &mut guards[GUARD..]);
        if !guards.iter().all(|value| value.is_nan()) {
            return Err(Error::WroteOutside { rank });
        }
        c.truncate(GUARD + len);
        c.drain(..GUARD);
        Ok(c)
    }
}

impl<E, Op> Drop for Whole<'_, E, Op> {
    fn drop(&mut self) {
        // The operands may be freed only when no stream uses them any more; errors were or will be reported elsewhere.
        for rank in self.ranks.iter() {
            if let Err(error) = rank.stream.synchronize() {
                tracing::warn!(%error, "a rank's stream ended with an error");
            }
        }
    }
}

fn check_len(name: &'static str, len: usize, rows: usize, columns: usize) -> Result<()> {
    if rows.checked_mul(columns) == Some(len) {
        return Ok(());
    }
    Err(Error::BadMatrix { name, reason: format!("{len} elements are not {rows} rows of {columns}") })
}

/// Host memory, or an error if there is not enough.
fn zeroed<E: Element>(len: usize) -> Result<Vec<E>> {
    let mut values = Vec::new();
    let bytes = len.saturating_mul(size_of::<E>());
    if !flux_memory::host::is_available(bytes) || values.try_reserve_exact(len).is_err() {
        let (placement, device) = (Placement::Device, "the host".into());
        return Err(flux_memory::Error::OutOfMemory { bytes, placement, device }.into());
    }
    values.resize(len, E::zeroed());
    Ok(values)
}

/// A buffer of `len` NaNs.
fn poisoned<E: Element>(group: &Group, rank: usize, stream: &Stream, len: usize) -> Result<Buffer> {
    let bytes = len.saturating_mul(size_of::<E>());
    let buffer = Buffer::allocate(group.device(rank)?, bytes, Placement::Device)?;
    let block = vec![E::round(f32::NAN); len.min(1 << 20)];
    for first in (0..len).step_by(block.len().max(1)) {
        let values = &block[..block.len().min(len - first)];
        buffer.upload(stream, first * size_of::<E>(), bytemuck::cast_slice(values))?;
    }
    Ok(buffer)
}

fn upload<T: bytemuck::Pod>(group: &Group, rank: usize, stream: &Stream, values: &[T]) -> Result<Buffer> {
    let buffer = Buffer::allocate(group.device(rank)?, size_of_val(values), Placement::Device)?;
    buffer.upload(stream, 0, bytemuck::cast_slice(values))?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackendChoice, DType, GemmAr, GroupConfig, OpSpec};
    use half::bf16;

    #[test]
    fn ranks_that_hold_different_results_are_noticed() {
        let config = GroupConfig { backend: BackendChoice::Host, ..GroupConfig::default() };
        let group = Group::local_with(3, config).unwrap();
        let op = GemmAr::new(&group, OpSpec::new(5, 4, 2, DType::Bf16)).unwrap();
        let (a, b) = (vec![bf16::ONE; 8], vec![bf16::ONE; 20]);
        let whole = Whole::place(&group, &op, &a, &b, 2).unwrap();
        whole.enqueue().unwrap();
        assert_eq!(whole.result().unwrap(), vec![bf16::from_f32(4.0); 10]);
        let rank = &whole.ranks[2];
        rank.c_buffer.upload(&rank.stream, 2 * (GUARD + 9), &[0; 2]).unwrap();
        assert!(matches!(whole.result(), Err(Error::RanksDiffer { rank: 2, other: 0 })));
        rank.c_buffer.upload(&rank.stream, 0, &[0; 2]).unwrap();
        assert!(matches!(whole.result(), Err(Error::WroteOutside { rank: 2 })));
    }
}
