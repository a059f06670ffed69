//! Traces on GPUs: events of copies and the timer of kernels must agree.

use flux::{AgGemm, BackendChoice, DType, Error, Group, GroupConfig, OpSpec, Placement};
use flux_tests::traces;

/// An event tells half a microsecond, and so does the calibration; between two GPUs, a microsecond.
const TOLERANCE_NS: u64 = 3000;

fn group(world_size: usize, placement: Placement) -> Group {
    let mut config = GroupConfig::default();
    (config.backend, config.trace, config.peer_memory) = (BackendChoice::Cuda, true, placement);
    Group::local_with(world_size, config).expect("these tests need a GPU")
}

#[test]
fn traces_show_every_unit_once_and_in_order() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        for world_size in [1, 2, 4] {
            traces::check(&group(world_size, placement), TOLERANCE_NS);
        }
    }
}

#[test]
fn only_bf16_is_traced() {
    let made = AgGemm::new(&group(1, Placement::Device), OpSpec::new(64, 64, 64, DType::F16));
    assert!(matches!(made, Err(Error::Launch(flux_launch::Error::NotTraceable { dtype: DType::F16 }))));
}
