//! Data for the demonstration, and an independent computation of what it should give.

use flux::Element;
use rayon::prelude::*;

/// `len` normal numbers with standard deviation `scale`, the same for the same seed.
pub(crate) fn normal<E: Element>(len: usize, scale: f32, seed: u64) -> Vec<E> {
    const BLOCK: usize = 1 << 14;
    let mut values = vec![E::zeroed(); len];
    values.par_chunks_mut(BLOCK).enumerate().for_each(|(block, values)| {
        let mut state = seed ^ (block as u64).wrapping_mul(0xd134_2543_de82_ef95);
        let mut uniform = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 40) as f32 / (1_u64 << 24) as f32
        };
        for pair in values.chunks_mut(2) {
            // Box–Muller gives two at a time.
            let radius = scale * (-2.0 * (1.0 - uniform()).ln()).sqrt();
            let (sin, cos) = (std::f32::consts::TAU * uniform()).sin_cos();
            pair.iter_mut().zip([cos, sin]).for_each(|(value, part)| *value = E::round(radius * part));
        }
    });
    values
}

pub(crate) fn widen<E: Element>(values: &[E]) -> Vec<f32> {
    let mut wide = vec![0.0; values.len()];
    E::widen(values, &mut wide);
    wide
}

/// How far a result is from what it should be.
pub(crate) struct Deviation {
    /// ‖result − reference‖ / ‖reference‖.
    pub(crate) relative: f64,
    /// The largest difference of an element.
    pub(crate) largest: f64,
}

/// Compares the given `rows` of `c` `[.., n]` with the `activation` of A·Bᵀ, computed in fp32 by a plain loop: no code
/// in common with what is checked.
pub(crate) fn compare<E: Element>(
    c: &[E],
    a: &[E],
    b: &[E],
    rows: &[usize],
    n: usize,
    k: usize,
    activation: impl Fn(f64) -> f64 + Sync,
) -> Deviation {
    let b = widen(b);
    let sums = rows.par_iter().map(|&row| {
        let (a, c) = (widen(&a[row * k..][..k]), widen(&c[row * n..][..n]));
        let (mut difference, mut norm, mut largest) = (0.0_f64, 0.0_f64, 0.0_f64);
        for (b, &c) in b.chunks_exact(k).zip(&c) {
            let reference = activation(f64::from(dot(&a, b)));
            let off = f64::from(c) - reference;
            difference += off * off;
            norm += reference * reference;
            // A NaN must not pass for a small difference.
            largest = if largest.is_nan() || off.abs() <= largest { largest } else { off.abs() };
        }
        (difference, norm, largest)
    });
    let pick = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    let sum = |x: (f64, f64, f64), y: (f64, f64, f64)| (x.0 + y.0, x.1 + y.1, pick(x.2, y.2));
    let (difference, norm, largest) = sums.reduce(|| (0.0, 0.0, 0.0), sum);
    Deviation { relative: (difference / norm.max(f64::MIN_POSITIVE)).sqrt(), largest }
}

/// Sixteen partial sums, which the compiler keeps in vector registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    let (a, b) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f32>() + rest
}
