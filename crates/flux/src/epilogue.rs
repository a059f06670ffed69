//! What an operation does to its sums before they are rounded: a bias, and an activation. What callers can get wrong
//! there.

use crate::{Activation, Address, DType, Error, OpSpec, Result};

/// A bias of `len` elements must be aligned to them.
pub(crate) fn check_bias(bias: Option<Address>, len: usize, dtype: DType) -> Result<()> {
    let bad = |reason: String| Err(Error::BadBias { reason });
    match bias {
        Some(bias) if bias.is_null() && len > 0 => bad("the address is null".into()),
        Some(bias) if !bias.is_aligned_to(dtype.bytes() as u64) => {
            bad(format!("the address {bias} is not aligned to its {dtype} elements"))
        }
        _ => Ok(()),
    }
}

/// The columns of the result of a weight of `spec.n` rows.
pub(crate) fn columns(spec: &OpSpec) -> Result<usize> {
    let each = spec.activation.sums_per_column();
    if spec.n.is_multiple_of(each) { Ok(spec.n / each) } else { Err(Error::UnpairedRows { n: spec.n }) }
}

/// Operations that sum over ranks apply no activation: behind the sum, layers have none, and before it, it would be
/// wrong.
pub(crate) fn check_no_activation(op: &'static str, spec: &OpSpec) -> Result<()> {
    match spec.activation {
        Activation::None => Ok(()),
        activation => Err(Error::ActivationAfterSum { op, activation }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_biases_are_refused() {
        for bad in [Address::NULL, Address(65)] {
            assert!(matches!(check_bias(Some(bad), 8, DType::Bf16), Err(Error::BadBias { .. })), "{bad}");
        }
        for (bias, len) in [(None, 8), (Some(Address(66)), 8), (Some(Address::NULL), 0)] {
            check_bias(bias, len, DType::Bf16).unwrap();
        }
    }

    #[test]
    fn pairs_need_an_even_number_of_rows() {
        let mut spec = OpSpec::new(7, 1, 1, DType::Bf16);
        assert_eq!(columns(&spec).unwrap(), 7);
        check_no_activation("gemm-rs", &spec).unwrap();
        spec.activation = Activation::SwiGlu;
        assert!(matches!(columns(&spec), Err(Error::UnpairedRows { n: 7 })));
        assert!(matches!(check_no_activation("gemm-rs", &spec), Err(Error::ActivationAfterSum { .. })));
        spec.n = 8;
        assert_eq!(columns(&spec).unwrap(), 4);
    }
}
