//! 8-bit floating point, as the tensor cores take it.

use bytemuck::{Pod, Zeroable};

/// 8-bit floating point with 4 bits of exponent and 3 of mantissa, known as E4M3, E4M3FN, or `float8_e4m3fn`: ±448 at most,
/// subnormals from ±2⁻⁹ on, a NaN of each sign, no infinities.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct E4m3(u8);

impl E4m3 {
    /// 0.
    pub const ZERO: Self = Self(0);
    /// 1.
    pub const ONE: Self = Self(0x38);
    /// The largest number, 448.
    pub const MAX: Self = Self(0x7e);
    /// Not a number.
    pub const NAN: Self = Self(0x7f);

    /// The number of these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits: sign, exponent, mantissa.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Rounds to the nearest number, ties to even. What is larger than 448, also infinity, becomes 448.
    #[allow(clippy::cast_possible_truncation)] // what is left is at most 0x7e
    pub const fn from_f32(value: f32) -> Self {
        const LARGEST: u32 = 448.0_f32.to_bits();
        const LEAST_NORMAL: u32 = 0.015_625_f32.to_bits(); // 2⁻⁶
        const INFINITE: u32 = f32::INFINITY.to_bits();
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7fff_ffff);
        let rounded = if magnitude > INFINITE {
            Self::NAN.0
        } else if magnitude >= LARGEST {
            Self::MAX.0
        } else if magnitude >= LEAST_NORMAL {
            // 20 bits of mantissa go; the exponent's bias changes from 127 to 7.
            let half_less_one = (1 << 19) - 1;
            let rounded = (magnitude + half_less_one + (magnitude >> 20 & 1)) >> 20;
            (rounded - ((127 - 7) << 3)) as u8
        } else {
            // Numbers of this size are 2⁻⁹ apart, as are the ones of fp32 from 2¹⁴ on: the sum is rounded to them.
            const STEP: f32 = 16_384.0;
            ((f32::from_bits(magnitude) + STEP).to_bits() - STEP.to_bits()) as u8
        };
        Self(sign | rounded)
    }

    /// Exactly.
    pub const fn to_f32(self) -> f32 {
        let (sign, magnitude) = ((self.0 as u32 & 0x80) << 24, self.0 as u32 & 0x7f);
        let value = match magnitude {
            0x7f => f32::NAN,
            0..8 => magnitude as f32 / 512.0,
            _ => f32::from_bits((magnitude + ((127 - 7) << 3)) << 20),
        };
        f32::from_bits(value.to_bits() | sign)
    }

    /// Whether it is not a number.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }
}

impl From<E4m3> for f32 {
    fn from(value: E4m3) -> Self {
        value.to_f32()
    }
}

impl From<E4m3> for f64 {
    fn from(value: E4m3) -> Self {
        value.to_f32().into()
    }
}

/// As numbers: zeros are equal, and a NaN to nothing.
impl PartialEq for E4m3 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl PartialOrd for E4m3 {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.to_f32().partial_cmp(&other.to_f32())
    }
}

impl std::fmt::Debug for E4m3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.to_f32(), f)
    }
}

impl std::fmt::Display for E4m3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.to_f32(), f)
    }
}

// SAFETY: a byte, of which every value is an E4m3: it can be copied to a GPU and back.
unsafe impl cudarc::driver::DeviceRepr for E4m3 {}
// SAFETY: all bits 0 are 0.
unsafe impl cudarc::driver::ValidAsZeroBits for E4m3 {}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = E4m3> {
        (0..=u8::MAX).map(E4m3::from_bits)
    }

    #[test]
    fn every_value_is_what_its_bits_say() {
        for value in all() {
            let (exponent, mantissa) = (value.0 >> 3 & 15, f64::from(value.0 & 7));
            let magnitude = match exponent {
                0 => mantissa / 8.0 * 2.0_f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2.0_f64.powi(i32::from(exponent) - 7),
            };
            assert_eq!(f64::from(value).is_sign_negative(), value.0 >= 0x80, "{:#x}", value.0);
            if value.0 & 0x7f == 0x7f {
                assert!(value.is_nan() && value.to_f32().is_nan());
            } else {
                assert_eq!(f64::from(value).abs(), magnitude, "{:#x}", value.0);
                assert_eq!(E4m3::from_f32(value.to_f32()).0, value.0);
            }
        }
        assert_eq!((E4m3::ONE.to_f32(), E4m3::MAX.to_f32(), E4m3::ZERO.to_f32()), (1.0, 448.0, 0.0));
    }

    /// Between every two neighbours: a tie goes to the even one, what is just beside it to the nearer one.
    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        for low in (0..0x7e).map(E4m3::from_bits) {
            let high = E4m3::from_bits(low.0 + 1);
            let tie = f32::midpoint(low.to_f32(), high.to_f32());
            let even = if low.0 % 2 == 0 { low } else { high };
            for sign in [1.0, -1.0] {
                let bits = if sign < 0.0 { 0x80 } else { 0 };
                for (value, rounded) in [(tie, even), (tie.next_down(), low), (tie.next_up(), high)] {
                    assert_eq!(E4m3::from_f32(sign * value).0, rounded.0 | bits, "{value}");
                }
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates_and_nan_stays() {
        for value in [448.0, 448.1, 464.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!(E4m3::from_f32(value).0, 0x7e);
            assert_eq!(E4m3::from_f32(-value).0, 0xfe);
        }
        assert!(E4m3::from_f32(f32::NAN).is_nan() && E4m3::from_f32(-f32::NAN).is_nan());
        for tiny in [0.0, 1e-30, 2.0_f32.powi(-10)] {
            assert_eq!((E4m3::from_f32(tiny).0, E4m3::from_f32(-tiny).0), (0, 0x80));
        }
    }

    #[test]
    fn it_compares_as_a_number() {
        assert_eq!(E4m3::from_bits(0x80), E4m3::ZERO);
        assert!(E4m3::NAN != E4m3::NAN && E4m3::ONE < E4m3::MAX && E4m3::from_bits(0xfe) < E4m3::ZERO);
        assert_eq!(format!("{} {:?}", E4m3::MAX, E4m3::ONE), "448 1.0");
    }
}
