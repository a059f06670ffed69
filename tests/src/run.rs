//! One call of all ranks, with everything that is written to poisoned first.

use flux::{Address, AgGemm, Element, Error, GemmAr, GemmRs, Group, Operation, PathChoice, Stream, Whole};

/// The result of all ranks, and which way it came.
pub struct Outcome<E> {
    /// The result: `[m, n]`, or `[m, n / 2]` with SwiGLU.
    pub c: Vec<E>,
    /// The way.
    pub choice: PathChoice,
}

/// An operation's own memory that its peers, or itself, write to.
pub trait Buffers: Operation {
    /// `rank`'s, each with its size in bytes.
    fn buffers(&self, rank: usize) -> Vec<(Address, usize)>;
}

impl Buffers for AgGemm {
    fn buffers(&self, rank: usize) -> Vec<(Address, usize)> {
        vec![(self.gathered(rank), self.gathered_bytes()), self.gathered_scales(rank)]
    }
}

impl Buffers for GemmRs {
    fn buffers(&self, rank: usize) -> Vec<(Address, usize)> {
        vec![(self.slots(rank), self.slots_bytes()), self.relayed_tiles(rank), self.fetched_slots(rank)]
    }
}

impl Buffers for GemmAr {
    fn buffers(&self, rank: usize) -> Vec<(Address, usize)> {
        GemmAr::buffers(self, rank).to_vec()
    }
}

/// A, B, and a bias if there is one.
pub type Given<'a, E> = (&'a [E], &'a [E], Option<&'a [<E as Element>::Result]>);

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, cut up as `op` wants them, and adds `bias` `[n]` if there is
/// one.
pub fn any<E: Element, Op: Buffers>(
    group: &Group,
    op: &Op,
    m: usize,
    (a, b, bias): Given<'_, E>,
) -> Result<Outcome<E::Result>, Error> {
    scaled(group, op, m, (a, b, bias), [&[], &[]])
}

/// The same with scales of `a` and `b`, each empty, one number, or one for each row.
pub fn scaled<E: Element, Op: Buffers>(
    group: &Group,
    op: &Op,
    m: usize,
    (a, b, bias): Given<'_, E>,
    [a_scale, b_scale]: [&[f32]; 2],
) -> Result<Outcome<E::Result>, Error> {
    let mut whole = Whole::place(group, op, a, b, m)?.with_scales(a_scale, b_scale)?;
    if let Some(bias) = bias {
        whole = whole.with_bias(bias)?;
    }
    for (rank, stream) in group.local_ranks().zip(whole.streams()) {
        for (address, bytes) in op.buffers(rank) {
            poison(stream, address, bytes)?;
        }
    }
    group.barrier()?; // no peer sends before this rank's memory is poisoned
    Ok(Outcome { choice: whole.enqueue()?, c: whole.result()? })
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, rows of both sharded.
pub fn ag_gemm<E: Element>(
    group: &Group,
    op: &AgGemm,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E::Result>, Error> {
    any(group, op, m, (a, b, None))
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, columns of both sharded.
pub fn gemm_rs<E: Element>(
    group: &Group,
    op: &GemmRs,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E::Result>, Error> {
    any(group, op, m, (a, b, None))
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, columns of both sharded, the result on every rank.
pub fn gemm_ar<E: Element>(
    group: &Group,
    op: &GemmAr,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E::Result>, Error> {
    any(group, op, m, (a, b, None))
}

/// All bits 1 are NaNs of every type.
fn poison(stream: &Stream, address: Address, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the operation's own buffer, of that size; nothing is in flight.
    Ok(unsafe { stream.upload(address, &vec![0xff; bytes]) }?)
}
