//! One call of all ranks, from whole matrices to a whole result. Everything that is written is poisoned first.

use flux::{
    Address, AgGemm, AgGemmCall, Buffer, Element, Error, GemmRs, GemmRsCall, Group, Matrix, PathChoice,
    Placement, Stream,
};
use std::ops::Range;

/// Elements on each side of an output that nobody may touch.
const GUARD: usize = 64;

/// The result `[m, n]` of all ranks, and which way it came.
pub struct Outcome<E> {
    /// The result.
    pub c: Vec<E>,
    /// Rank 0's way.
    pub choice: PathChoice,
}

/// One rank's stream and buffers.
struct Rank {
    stream: Stream,
    a: Buffer,
    b: Buffer,
    c: Buffer,
    c_shape: (usize, usize),
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, rows of both sharded.
pub fn ag_gemm<E: Element>(
    group: &Group,
    op: &AgGemm,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E>, Error> {
    let (n, k) = (op.spec().n, op.spec().k);
    let mut choice = None;
    let mut ranks = Vec::new();
    for rank in group.local_ranks() {
        let stream = group.stream(rank)?;
        poison::<E>(&stream, op.gathered(rank), op.gathered_bytes())?;
        let columns = op.columns(rank).len();
        ranks.push(Rank {
            a: place(group, rank, &stream, rows(a, k, op.rows(rank, m)))?,
            b: place(group, rank, &stream, rows(b, k, op.columns(rank)))?,
            c: place(group, rank, &stream, &guarded::<E>(m * columns))?,
            c_shape: (m, columns),
            stream,
        });
    }
    for (rank, data) in ranks.iter().enumerate() {
        let call = AgGemmCall {
            m,
            a: data.a.address(),
            b: Matrix::contiguous(data.b.address(), k),
            c: Matrix::contiguous(data.c.address().add(GUARD * size_of::<E>()), data.c_shape.1),
        };
        // SAFETY: the buffers are as large as the call says, and outlive the stream's work.
        choice.get_or_insert(unsafe { op.enqueue(rank, &call, &data.stream) }?);
    }
    let parts = collect::<E>(group, &ranks)?;
    let mut c = vec![E::zeroed(); m * n];
    for (rank, part) in parts.iter().enumerate() {
        let columns = op.columns(rank);
        for row in 0..m {
            c[row * n..][columns.clone()].copy_from_slice(&part[row * columns.len()..][..columns.len()]);
        }
    }
    Ok(Outcome { c, choice: choice.expect("a group has a rank") })
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, columns of both sharded.
pub fn gemm_rs<E: Element>(
    group: &Group,
    op: &GemmRs,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E>, Error> {
    let (n, k) = (op.spec().n, op.spec().k);
    let mut choice = None;
    let mut ranks = Vec::new();
    for rank in group.local_ranks() {
        let stream = group.stream(rank)?;
        poison::<E>(&stream, op.slots(rank), op.slots_bytes())?;
        let own = op.rows(rank, m).len();
        ranks.push(Rank {
            a: place(group, rank, &stream, &columns(a, k, op.depth(rank)))?,
            b: place(group, rank, &stream, &columns(b, k, op.depth(rank)))?,
            c: place(group, rank, &stream, &guarded::<E>(own * n))?,
            c_shape: (own, n),
            stream,
        });
    }
    for (rank, data) in ranks.iter().enumerate() {
        let depth = op.depth(rank).len();
        let call = GemmRsCall {
            m,
            a: Matrix::contiguous(data.a.address(), depth),
            b: Matrix::contiguous(data.b.address(), depth),
            c: Matrix::contiguous(data.c.address().add(GUARD * size_of::<E>()), n),
        };
        // SAFETY: the buffers are as large as the call says, and outlive the stream's work.
        choice.get_or_insert(unsafe { op.enqueue(rank, &call, &data.stream) }?);
    }
    let c = collect::<E>(group, &ranks)?.concat();
    Ok(Outcome { c, choice: choice.expect("a group has a rank") })
}

/// Waits for all ranks, checks the guards, and returns what each computed.
fn collect<E: Element>(group: &Group, ranks: &[Rank]) -> Result<Vec<Vec<E>>, Error> {
    let mut parts = Vec::new();
    for rank in ranks {
        let len = rank.c_shape.0 * rank.c_shape.1;
        let mut c = vec![E::zeroed(); len + 2 * GUARD];
        rank.c.download(&rank.stream, 0, bytemuck::cast_slice_mut(&mut c))?;
        let guards = c[..GUARD].iter().chain(&c[GUARD + len..]);
        let mut wide = [0.0];
        for guard in guards {
            E::widen(std::slice::from_ref(guard), &mut wide);
            assert!(wide[0].is_nan(), "something was written outside of an output");
        }
        parts.push(c[GUARD..GUARD + len].to_vec());
    }
    group.check()?;
    Ok(parts)
}

fn guarded<E: Element>(len: usize) -> Vec<E> {
    vec![E::round(f32::NAN); len + 2 * GUARD]
}

fn poison<E: Element>(stream: &Stream, address: Address, bytes: usize) -> Result<(), Error> {
    let nans = vec![E::round(f32::NAN); bytes / size_of::<E>()];
    // SAFETY: the operation's own buffer, of that size; nothing is in flight.
    Ok(unsafe { stream.upload(address, bytemuck::cast_slice(&nans)) }?)
}

fn place<E: Element>(group: &Group, rank: usize, stream: &Stream, values: &[E]) -> Result<Buffer, Error> {
    let buffer = Buffer::allocate(group.device(rank)?, size_of_val(values), Placement::Device)?;
    buffer.upload(stream, 0, bytemuck::cast_slice(values))?;
    Ok(buffer)
}

fn rows<E>(matrix: &[E], columns: usize, rows: Range<usize>) -> &[E] {
    &matrix[rows.start * columns..rows.end * columns]
}

fn columns<E: Element>(matrix: &[E], pitch: usize, columns: Range<usize>) -> Vec<E> {
    matrix.chunks(pitch.max(1)).flat_map(|row| row[columns.clone()].iter().copied()).collect()
}
