//! Element types.

/// The type of the matrices' elements; sums are always accumulated in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl DType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        2
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
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
    /// Widens each element.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounds to nearest, ties to even.
    fn round(value: f32) -> Self;
}

impl Element for half::bf16 {
    const DTYPE: DType = DType::Bf16;

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

    fn widen(from: &[Self], to: &mut [f32]) {
        use half::slice::HalfFloatSliceExt;
        let len = from.len().min(to.len());
        from[..len].convert_to_f32_slice(&mut to[..len]);
    }

    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
}
