//! Traces on the host backend, where transfers and tiles share one clock.

use flux::{
    AgGemm, BackendChoice, DType, Delivery, Error, GemmRs, Group, GroupConfig, OpSpec, PathPreference,
    Summation, Whole,
};
use flux_memory::Stream;
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::traces;
use half::bf16;
use std::time::Duration;

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

/// Rank 0 sums everything, and its peer comes late: what is missing is waited for when all tiles have been multiplied.
#[test]
fn tiles_do_not_wait_for_slots_while_others_can_be_multiplied() {
    let (group, [m, n, k]) = (group(2, true), [1, 1000, 64]);
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    (spec.path, spec.delivery, spec.summation) = (PathPreference::Fused, Delivery::Direct, Summation::Folded);
    let op = GemmRs::new(&group, spec).unwrap();
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
    let Stream::Host(of_peer) = whole.streams().nth(1).unwrap() else { unreachable!() };
    of_peer.launch(|| std::thread::sleep(Duration::from_millis(50))).unwrap();
    whole.enqueue().unwrap();
    assert_eq!(relative_error(&whole.result().unwrap(), &product(&a, &b, m, n, k)), 0.0);
    let units = &op.traces().unwrap()[0].units;
    let waited = units.iter().map(|unit| unit.gate_end_ns).min().unwrap();
    assert!(units.len() > 1 && units.iter().all(|unit| unit.multiply_end_ns <= waited), "{units:?}");
}
