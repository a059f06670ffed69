//! What becomes of sums before they are rounded: they are scaled, a bias is added, then an activation applied.

use crate::{Activation, Element, Scales};
use flux_memory::Address;

/// Multiplies `columns` sums of each of `rows` by their scales; `first` is the row and column, of the whole product, of the first.
///
/// # Safety
/// Scales, unless null, are live host memory, with one for each row and column if there is not one for all.
pub(crate) unsafe fn scale<'a>(
    scales: &Scales,
    (first_row, first_column): (usize, usize),
    rows: impl Iterator<Item = &'a mut [f32]>,
    columns: usize,
) {
    let at = |scales: Address, stride: u32, index: usize| match scales {
        Address::NULL => 1.0,
        // SAFETY: the caller's promise.
        scales => unsafe { *scales.as_ptr::<f32>().add(stride as usize * index) },
    };
    for (row, sums) in rows.enumerate() {
        let of_row = at(scales.a, scales.a_stride, first_row + row);
        for (column, sum) in sums[..columns].iter_mut().enumerate() {
            *sum *= of_row * at(scales.b, scales.b_stride, first_column + column);
        }
    }
}

/// Adds to `sums` the elements of the bias from `first` on; null is none. `widened` has room for them.
///
/// # Safety
/// The bias, unless null, is live host memory with an element for each of the sums.
pub(crate) unsafe fn add_bias<E: Element>(
    bias: Address,
    first: usize,
    sums: &mut [f32],
    widened: &mut [f32],
) {
    if bias.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let bias = unsafe { std::slice::from_raw_parts(bias.as_ptr::<E>().add(first), sums.len()) };
    E::widen(bias, widened);
    sums.iter_mut().zip(widened.iter()).for_each(|(sum, bias)| *sum += bias);
}

/// Applies `activation`; SwiGLU leaves its results, one for each pair, in the first half.
pub(crate) fn activate(activation: Activation, sums: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Gelu => sums.iter_mut().for_each(|x| *x = gelu(*x)),
        Activation::Silu => sums.iter_mut().for_each(|x| *x = silu(*x)),
        Activation::SwiGlu => {
            for column in 0..sums.len() / 2 {
                sums[column] = silu(sums[2 * column]) * sums[2 * column + 1];
            }
        }
    }
}

/// (1 + tanh(u)) / 2 is 1 / (1 + exp(−2u)), which loses nothing where tanh is close to −1; 2 √(2/π) is 1.5957…
fn gelu(x: f32) -> f32 {
    x / (1.0 + (-1.595_769 * (x + 0.044_715 * x * x * x)).exp())
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn activations_are_what_they_are_called() {
        for step in -800..=800_i16 {
            let x = f64::from(step) / 50.0;
            let silu = x / (1.0 + (-x).exp());
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            let gelu = 0.5 * x * (1.0 + inner.tanh());
            for (activation, expected) in
                [(Activation::None, x), (Activation::Silu, silu), (Activation::Gelu, gelu)]
            {
                let mut sums = [x as f32];
                activate(activation, &mut sums);
                let off = (f64::from(sums[0]) - expected).abs();
                assert!(off <= 1e-5 * expected.abs() + 1e-12, "{activation}({x}) = {}", sums[0]);
            }
            let mut sums = [x as f32, -3.0, 1.0, x as f32];
            activate(Activation::SwiGlu, &mut sums);
            assert!(
                (f64::from(sums[0]) + 3.0 * silu).abs() <= 1e-5
                    && (f64::from(sums[1]) - 0.731_058_6 * x).abs() <= 1e-5
            );
        }
        for (activation, x) in
            [(Activation::Gelu, f32::INFINITY), (Activation::Silu, 1e30), (Activation::Gelu, 1e30)]
        {
            let mut sums = [x, -1e30, f32::NAN];
            activate(activation, &mut sums);
            assert!(sums[0] == x && sums[1] == 0.0 && sums[2].is_nan(), "{activation}: {sums:?}");
        }
    }

    #[test]
    fn a_bias_is_added_from_its_place_on() {
        let bias = [1.0, 2.0, 4.0].map(bf16::from_f32);
        let (mut sums, mut widened) = ([10.0, 20.0], [0.0; 4]);
        // SAFETY: there are two elements from 1 on; none is read of none.
        unsafe {
            add_bias::<bf16>(Address(bias.as_ptr() as u64), 1, &mut sums, &mut widened);
            add_bias::<bf16>(Address::NULL, 7, &mut sums, &mut widened);
        }
        assert_eq!(sums, [12.0, 24.0]);
    }

    #[test]
    fn sums_are_scaled_by_row_and_column() {
        let (rows, columns) = ([9.0_f32, 2.0, 4.0], [9.0_f32, 1.0, 3.0, 0.5]);
        let [a, b] = [rows.as_ptr() as u64, columns.as_ptr() as u64].map(Address);
        for (a_stride, b_stride, expected) in [
            (1, 1, [2.0, 6.0, 1.0, 7.0, 4.0, 12.0, 2.0, 7.0]),
            (1, 0, [18.0, 18.0, 18.0, 7.0, 36.0, 36.0, 36.0, 7.0]),
            (0, 0, [81.0, 81.0, 81.0, 7.0, 81.0, 81.0, 81.0, 7.0]),
        ] {
            let mut sums = [1.0, 1.0, 1.0, 7.0, 1.0, 1.0, 1.0, 7.0];
            // SAFETY: there are so many scales from row and column 1 on.
            unsafe { scale(&Scales { a, b, a_stride, b_stride }, (1, 1), sums.chunks_exact_mut(4), 3) };
            assert_eq!(sums, expected);
        }
        let mut sums = [5.0];
        // SAFETY: none is read of none.
        unsafe { scale(&Scales::default(), (3, 8), sums.chunks_exact_mut(1), 1) };
        assert_eq!(sums, [5.0]);
    }
}
