//! What NVSHMEM's device library calls the function that kernels put by: no part of its interface, it has changed with versions.

/// The name that kernels call, and NVSHMEM 3.2 to 3.4 has.
const PUT_SIGNAL: &str = "_Z28nvshmemi_transfer_put_signalIL13threadgroup_t0EEvPvS1_mS1_m14nvshmemi_amo_tib";

/// Versions, and what they have in its place: the same with a queue pair as one more parameter.
const LATER: [(&str, &str); 2] = [
    ("3.5 to 3.7", "_Z28nvshmemi_transfer_put_signalIL13threadgroup_t0EEvPvS1_mS1_m14nvshmemi_amo_tibi"),
    ("3.8", "_Z37nvshmemi_transfer_put_signal_dispatchIL13threadgroup_t0EEvPvS1_mS1_m14nvshmemi_amo_tibi"),
];

/// PTX of `PUT_SIGNAL` as a call of `LATER`; 1 is `NVSHMEMX_QP_DEFAULT` in the headers of all these versions.
const BRIDGE: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func LATER (.param .b64 to, .param .b64 from, .param .b64 bytes, .param .b64 signal, .param .b64 value,
    .param .b32 operation, .param .b32 pe, .param .b32 goes_on, .param .b32 queue_pair);
.visible .func PUT_SIGNAL (.param .b64 to, .param .b64 from, .param .b64 bytes, .param .b64 signal, .param .b64 value,
    .param .b32 operation, .param .b32 pe, .param .b32 goes_on)
{
    .reg .b64 l<5>;
    .reg .b32 i<3>;
    ld.param.b64 l0, [to];
    ld.param.b64 l1, [from];
    ld.param.b64 l2, [bytes];
    ld.param.b64 l3, [signal];
    ld.param.b64 l4, [value];
    ld.param.b32 i0, [operation];
    ld.param.b32 i1, [pe];
    ld.param.b32 i2, [goes_on];
    call LATER, (l0, l1, l2, l3, l4, i0, i1, i2, 1);
    ret;
}
";

/// Versions of NVSHMEM, and what has to be linked with a kernel and their device library: PTX, or nothing. Which one fits, a linker
/// finds out: with the others the function is missing.
pub(crate) fn bridges() -> impl Iterator<Item = (&'static str, Option<String>)> {
    let bridge = |later| BRIDGE.replace("PUT_SIGNAL", PUT_SIGNAL).replace("LATER", later);
    let later = LATER.into_iter().map(move |(versions, later)| (versions, Some(bridge(later))));
    std::iter::once(("3.2 to 3.4", None)).chain(later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::catalogue::{KernelId, Load};

    /// The types of a function's parameters, as PTX declares it.
    fn parameters(ptx: &str, name: &str) -> Vec<String> {
        let declared = ptx.split(".func ").find_map(|text| {
            let rest = text.strip_prefix(name)?.trim_start().strip_prefix('(')?;
            rest.split_once(')').map(|(list, _)| list)
        });
        let types = declared.unwrap_or_else(|| panic!("{name} is not declared")).split(',');
        types.map(|parameter| parameter.split_whitespace().nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn bridges_have_what_kernels_call() {
        let ptx: Vec<_> = [DType::Bf16, DType::F16]
            .into_iter()
            .flat_map(|dtype| [Load::Vector, Load::Scalar].map(|load| KernelId::PutGemm(dtype, load)))
            .map(|id| id.info().unwrap().ptx().unwrap())
            .collect();
        let called = parameters(&ptx[0], PUT_SIGNAL);
        assert_eq!(called.len(), 8);
        for ptx in ptx {
            assert_eq!(parameters(&ptx, PUT_SIGNAL), called);
        }
        for ((_, bridge), (_, later)) in bridges().skip(1).zip(LATER) {
            let bridge = bridge.unwrap();
            assert_eq!(parameters(&bridge, PUT_SIGNAL), called);
            assert_eq!(parameters(&bridge, later), [&called[..], &[".b32".to_owned()]].concat());
        }
    }
}
