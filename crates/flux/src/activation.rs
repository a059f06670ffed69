//! What stands between the two halves of a transformer's MLP.

use crate::call::check_stream;
use crate::{Address, DType, Group, Matrix, Result, Stream};
use flux_launch::GeluParams;

/// Enqueues GELU (the tanh form, in fp32) of `len` elements at `values`, in place, on `rank`'s `stream`.
///
/// # Safety
/// The elements are live and reachable by the rank's device, and nobody else accesses them, until `stream` has passed this
/// call.
pub unsafe fn gelu(
    group: &Group,
    rank: usize,
    dtype: DType,
    values: Address,
    len: usize,
    stream: &Stream,
) -> Result<()> {
    check_stream(group, rank, stream)?;
    Matrix::contiguous(values, len).check("values", 1, len, dtype)?;
    let params = GeluParams { values, len: len as u64 };
    // SAFETY: the caller's promise.
    Ok(unsafe { group.launcher(rank).gelu(stream, dtype, &params) }?)
}
