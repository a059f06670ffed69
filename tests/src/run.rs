//! One call of all ranks, with everything that is written to poisoned first.

use flux::{Address, AgGemm, Element, Error, GemmAr, GemmRs, Group, PathChoice, Stream, Whole};

/// The result `[m, n]` of all ranks, and which way it came.
pub struct Outcome<E> {
    /// The result.
    pub c: Vec<E>,
    /// The way.
    pub choice: PathChoice,
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, rows of both sharded.
pub fn ag_gemm<E: Element>(
    group: &Group,
    op: &AgGemm,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E>, Error> {
    let whole = Whole::place(group, op, a, b, m)?;
    for (rank, stream) in whole.streams().enumerate() {
        poison::<E>(stream, op.gathered(rank), op.gathered_bytes())?;
    }
    Ok(Outcome { choice: whole.enqueue()?, c: whole.result()? })
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, columns of both sharded.
pub fn gemm_rs<E: Element>(
    group: &Group,
    op: &GemmRs,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E>, Error> {
    let whole = Whole::place(group, op, a, b, m)?;
    for (rank, stream) in whole.streams().enumerate() {
        poison::<E>(stream, op.slots(rank), op.slots_bytes())?;
        let (tiles, bytes) = op.relayed_tiles(rank);
        poison::<E>(stream, tiles, bytes)?;
    }
    Ok(Outcome { choice: whole.enqueue()?, c: whole.result()? })
}

/// Multiplies `a` `[m, k]` by `b` `[n, k]` transposed, columns of both sharded, the result on every rank.
pub fn gemm_ar<E: Element>(
    group: &Group,
    op: &GemmAr,
    m: usize,
    a: &[E],
    b: &[E],
) -> Result<Outcome<E>, Error> {
    let whole = Whole::place(group, op, a, b, m)?;
    for (rank, stream) in whole.streams().enumerate() {
        for (address, bytes) in op.buffers(rank) {
            poison::<E>(stream, address, bytes)?;
        }
    }
    Ok(Outcome { choice: whole.enqueue()?, c: whole.result()? })
}

fn poison<E: Element>(stream: &Stream, address: Address, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let nans = vec![E::round(f32::NAN); bytes / size_of::<E>()];
    // SAFETY: the operation's own buffer, of that size; nothing is in flight.
    Ok(unsafe { stream.upload(address, bytemuck::cast_slice(&nans)) }?)
}
