//! Matrices to multiply, and what they multiply to.

use flux::Element;
use rayon::prelude::*;

/// How a matrix is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Standard normal.
    Normal,
    /// −1, 0 or 1: every sum in the tests is exact in the element type.
    Integers,
}

/// `len` elements, the same for the same seed.
pub fn matrix<E: Element>(len: usize, fill: Fill, seed: u64) -> Vec<E> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut uniform = move || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1_u64 << 24) as f32
    };
    let mut next = || match fill {
        // Box–Muller
        Fill::Normal => (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos(),
        Fill::Integers => (uniform() * 3.0).floor() - 1.0,
    };
    (0..len).map(|_| E::round(next())).collect()
}

/// A·Bᵀ in double precision: A `[m, k]`, B `[n, k]`.
pub fn product<E: Element>(a: &[E], b: &[E], m: usize, n: usize, k: usize) -> Vec<f64> {
    let widen = |values: &[E]| {
        let mut wide = vec![0.0_f32; values.len()];
        E::widen(values, &mut wide);
        wide.into_iter().map(f64::from).collect::<Vec<_>>()
    };
    let (a, b) = (widen(a), widen(b));
    // By columns of B, so that the compiler can add up many of a row's elements at once.
    let b_columns: Vec<f64> = (0..k)
        .flat_map(|depth| (0..n).map(move |row| (row, depth)))
        .map(|(row, depth)| b[row * k + depth])
        .collect();
    let mut c = vec![0.0; m * n];
    c.par_chunks_mut(n.max(1)).enumerate().for_each(|(row, sums)| {
        for (a, b) in a[row * k..][..k].iter().zip(b_columns.chunks_exact(n.max(1))) {
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    });
    c
}

/// ‖out − reference‖ / ‖reference‖; not a number if an output is none.
pub fn relative_error<E: Element>(out: &[E], reference: &[f64]) -> f64 {
    let mut wide = vec![0.0_f32; out.len()];
    E::widen(out, &mut wide);
    let squares =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference =
        squares(&mut wide.iter().zip(reference).map(|(&out, reference)| f64::from(out) - reference));
    let norm = squares(&mut reference.iter().copied());
    if norm == 0.0 { difference } else { difference / norm }
}

/// Fills `buffer` with normal data: one block of it, again and again, since drawing gigabytes takes longer than measuring
/// on them.
pub fn fill_with_normal<E: Element>(buffer: &flux::Buffer, stream: &flux::Stream, seed: u64) {
    const BLOCK: usize = 1 << 22;
    let bytes = buffer.bytes();
    let block = matrix::<E>(BLOCK.min(bytes / size_of::<E>()), Fill::Normal, seed);
    let block: &[u8] = bytemuck::cast_slice(&block);
    for first in (0..bytes).step_by(block.len().max(1)) {
        buffer.upload(stream, first, &block[..block.len().min(bytes - first)]).unwrap();
    }
}

/// Whether two results agree to two units in the last place: where tiles are split along K, the last bit may differ. And by
/// `slack`, where sums come out small.
pub fn agree(ours: &[u16], theirs: &[u16], slack: f32) -> bool {
    let close = |(&a, &b): (&u16, &u16)| {
        let (a, b) = (f32::from(half::bf16::from_bits(a)), f32::from(half::bf16::from_bits(b)));
        (a - b).abs() <= b.abs() / 128.0 + slack
    };
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(close)
}
