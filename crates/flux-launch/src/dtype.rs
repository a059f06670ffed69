//! Element types.

use crate::E4m3;

/// The type of the elements of A and B; sums are always accumulated in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 8-bit floating point, [`E4m3`]: results are bf16, and A and B may have [`crate::Scales`].
    E4m3,
}

impl DType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::E4m3 => 1,
        }
    }

    /// The type of C, of a bias, and of partial sums on their way between ranks.
    pub const fn result(self) -> Self {
        match self {
            DType::Bf16 | DType::E4m3 => DType::Bf16,
            DType::F16 => DType::F16,
        }
    }

    /// Whether A and B may have [`crate::Scales`].
    pub const fn is_scaled(self) -> bool {
        matches!(self, DType::E4m3)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::E4m3 => "e4m3",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is an element type.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Which one.
    const DTYPE: DType;
    /// [`DType::result`] as a type.
    type Result: Element + PartialEq;
    /// Widens each element.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounds to nearest, ties to even; an [`E4m3`] is at most 448.
    fn round(value: f32) -> Self;
}

impl Element for half::bf16 {
    const DTYPE: DType = DType::Bf16;
    type Result = Self;

    fn widen(from: &[Self], to: &mut [f32]) {
        // bf16 is the upper half of an f32: the compiler turns this into vector code.
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(from.to_bits()) << 16));
    }

    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
    type Result = Self;

    fn widen(from: &[Self], to: &mut [f32]) {
        use half::slice::HalfFloatSliceExt;
        let len = from.len().min(to.len());
        from[..len].convert_to_f32_slice(&mut to[..len]);
    }

    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for E4m3 {
    const DTYPE: DType = DType::E4m3;
    type Result = half::bf16;

    fn widen(from: &[Self], to: &mut [f32]) {
        const ALL: [f32; 256] = {
            let mut all = [0.0; 256];
            let mut bits = 0_u8;
            loop {
                all[bits as usize] = E4m3::from_bits(bits).to_f32();
                if bits == u8::MAX {
                    break all;
                }
                bits += 1;
            }
        };
        to.iter_mut().zip(from).for_each(|(to, from)| *to = ALL[usize::from(from.to_bits())]);
    }

    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
}
