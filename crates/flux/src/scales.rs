//! What sums of products of 8-bit elements are multiplied by, and what callers can get wrong there.

use crate::{Address, DType, Error, Result};

/// The scale of a matrix, in fp32: the matrix that is meant has its elements, times this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// `f32`: one for the whole matrix.
    Tensor(Address),
    /// `f32[rows]`: one for each row.
    Rows(Address),
}

/// The scales of A and B: every sum of products is multiplied by its row's of A and by its column's (a row of B), in fp32,
/// before a bias is added. For [`DType::E4m3`] only. Scales are read when the call runs, on the rank's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scales {
    /// A's; none is 1.
    pub a: Option<Scale>,
    /// B's; none is 1.
    pub b: Option<Scale>,
}

impl Scale {
    const fn parts(self) -> (Address, u32) {
        match self {
            Scale::Tensor(address) => (address, 0),
            Scale::Rows(address) => (address, 1),
        }
    }

    fn check(self, name: &'static str, rows: usize) -> Result<()> {
        let (address, each_row) = self.parts();
        let bad = |reason: String| Err(Error::BadScale { name, reason });
        if address.is_null() && (rows > 0 || each_row == 0) {
            return bad("the address is null".into());
        }
        if !address.is_aligned_to(4) {
            return bad(format!("the address {address} is not aligned to fp32"));
        }
        Ok(())
    }
}

impl Scales {
    /// All of them 1.
    pub const NONE: Self = Self { a: None, b: None };

    /// Where A's scales are, if there is one for each row.
    pub(crate) const fn of_rows(self) -> Option<Address> {
        match self.a {
            Some(Scale::Rows(address)) => Some(address),
            _ => None,
        }
    }

    /// The same for the rows of A from `row` on.
    pub(crate) fn rows_from(self, row: usize) -> Self {
        match self.of_rows() {
            Some(address) => Self { a: Some(Scale::Rows(address.add(row * size_of::<f32>()))), ..self },
            None => self,
        }
    }

    /// As the kernels take them.
    pub(crate) fn lowered(self) -> flux_launch::Scales {
        let parts = |scale: Option<Scale>| scale.map_or((Address::NULL, 0), Scale::parts);
        let ((a, a_stride), (b, b_stride)) = (parts(self.a), parts(self.b));
        flux_launch::Scales { a, b, a_stride, b_stride }
    }

    /// Scales of matrices of `dtype`, A with so many rows, and B.
    pub(crate) fn check(self, dtype: DType, a_rows: usize, b_rows: usize) -> Result<()> {
        for (name, scale, rows) in [("A", self.a, a_rows), ("B", self.b, b_rows)] {
            let Some(scale) = scale else { continue };
            if !dtype.is_scaled() {
                let reason = format!("{dtype} has none");
                return Err(Error::BadScale { name, reason });
            }
            scale.check(name, rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_scales_are_refused() {
        let of_a = |scale| Scales { a: Some(scale), b: None };
        for bad in [Scale::Tensor(Address::NULL), Scale::Rows(Address::NULL), Scale::Rows(Address(66))] {
            let refused = of_a(bad).check(DType::E4m3, 3, 0);
            assert!(matches!(refused, Err(Error::BadScale { name: "A", .. })), "{bad:?}");
        }
        let fine = of_a(Scale::Rows(Address(64)));
        fine.check(DType::E4m3, 3, 0).unwrap();
        of_a(Scale::Rows(Address::NULL)).check(DType::E4m3, 0, 0).unwrap();
        assert!(matches!(fine.check(DType::Bf16, 3, 0), Err(Error::BadScale { .. })));
        Scales::NONE.check(DType::Bf16, 3, 3).unwrap();
        assert_eq!(fine.rows_from(5), of_a(Scale::Rows(Address(84))));
        let tensor = of_a(Scale::Tensor(Address(64)));
        assert_eq!((tensor.rows_from(5), tensor.lowered().a_stride), (tensor, 0));
    }
}
