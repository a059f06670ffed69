//! Traces on the host backend, where transfers and tiles share one clock.

use flux::{AgGemm, BackendChoice, DType, Error, Group, GroupConfig, OpSpec};
use flux_tests::traces;

fn group(world_size: usize, trace: bool) -> Group {
    let mut config = GroupConfig::default();
    (config.backend, config.trace) = (BackendChoice::Host, trace);
    Group::local_with(world_size, config).unwrap()
}

#[test]
fn traces_show_every_unit_once_and_in_order() {
    for world_size in [1, 2, 3, 4] {
        traces::check(&group(world_size, true), 0);
    }
}

#[test]
fn without_tracing_there_is_no_trace() {
    let group = group(2, false);
    let op = AgGemm::new(&group, OpSpec::new(16, 16, 64, DType::F16)).unwrap();
    assert!(matches!(op.traces(), Err(Error::NotTraced)));
}
