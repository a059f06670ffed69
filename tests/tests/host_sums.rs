//! Folded and separate sums on the host backend.

use flux::{BackendChoice, DType, GemmRs, Group, GroupConfig, OpSpec, PathPreference, Summation};
use flux_tests::data::{Fill, matrix};
use flux_tests::table::{CASES, Case, EDGES};
use flux_tests::{run, sums};
use half::bf16;
use proptest::prelude::*;

fn group(world_size: usize) -> Group {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Host;
    Group::local_with(world_size, config).unwrap()
}

fn check(case: Case) {
    // No rows at all are reduced one-shot.
    if case.m > 0 {
        sums::check(case, case.world_size > 1, &group);
    }
}

#[test]
fn folded_sums_have_the_bits_of_separate_ones() {
    CASES.into_iter().chain(EDGES).for_each(check);
    for world_size in 1..=8 {
        check(Case { m: 133 + 64 * world_size, n: 150, k: 24, world_size });
    }
    check(Case { m: 1300, n: 40, k: 16, world_size: 2 }); // several blocks of rows that share a signal
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn folded_sums_of_any_shape_have_the_bits_of_separate_ones(
        m in 1_usize..700, n in 1_usize..300, k in 1_usize..60, world_size in 1_usize..9,
    ) {
        check(Case { m, n, k, world_size });
    }
}

#[test]
fn the_choice_says_where_was_summed() {
    let group = group(2);
    let (m, n, k) = (600, 20, 16);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for (summation, path, used) in [
        (Summation::Auto, PathPreference::Auto, Some(Summation::Folded)),
        (Summation::Folded, PathPreference::Fused, Some(Summation::Folded)),
        (Summation::Separate, PathPreference::Fused, Some(Summation::Separate)),
        (Summation::Folded, PathPreference::Unfused, None),
        (Summation::Folded, PathPreference::Chunked, None),
    ] {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.summation, spec.path) = (summation, path);
        let op = GemmRs::new(&group, spec).unwrap();
        assert_eq!(
            run::gemm_rs(&group, &op, m, &a, &b).unwrap().choice.summation,
            used,
            "{summation} {path:?}"
        );
    }
}
