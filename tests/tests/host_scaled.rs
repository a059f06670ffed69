//! 8-bit elements and their scales on the host backend.

use flux::{
    AgGemm, AgGemmCall, Buffer, DType, E4m3, Error, GemmRs, GemmRsCall, Matrix, OpSpec, Placement, Scale,
    Scales, Whole,
};
use flux_tests::epilogues;
use flux_tests::groups::{on_host as group, on_host_in as group_in};
use flux_tests::scaled::{self, CASES, check};
use flux_tests::table::{self, Case};
use half::bf16;

#[test]
fn sums_are_scaled_in_every_way() {
    CASES.into_iter().for_each(|case| check(case, &group));
}

#[test]
fn the_tables_are_right_in_every_way() {
    table::CASES.into_iter().chain(table::EDGES).for_each(|case| table::check_e4m3(case, &group));
    epilogues::CASES.into_iter().for_each(|case| epilogues::check_e4m3(case, &group));
    for world_size in 1..=8 {
        table::check_e4m3(Case { m: 133, n: 40, k: 24, world_size }, &group);
    }
}

/// Pulled from there, rows go by another buffer.
#[test]
fn scales_go_through_pinned_host_memory_too() {
    check(Case { m: 301, n: 40, k: 24, world_size: 4 }, &group_in(Placement::PinnedHost));
}

#[test]
fn every_world_size_is_right() {
    for world_size in 1..=8 {
        check(Case { m: 133, n: 42, k: 24, world_size }, &group);
        scaled::check_that_ranks_have_their_own(world_size, &group);
    }
}

#[test]
fn scales_arrive_however_shards_are_pushed() {
    for world_size in [1, 2, 3, 5, 8] {
        scaled::check_pushes(world_size, &group);
    }
}

#[test]
fn nan_spreads_along_rows_and_columns() {
    scaled::check_that_nan_spreads(&group(2));
}

#[test]
fn all_pairs_of_numbers_are_multiplied_exactly() {
    scaled::check_all_products(&group(2));
}

#[test]
fn what_a_caller_can_get_wrong_is_an_error() {
    let group = group(2);
    let spec = OpSpec::new(8, 8, 16, DType::E4m3);
    let (gather, scatter) = (AgGemm::new(&group, spec.clone()).unwrap(), GemmRs::new(&group, spec).unwrap());
    let streams = [group.stream(0).unwrap(), group.stream(1).unwrap()];
    let buffer = Buffer::allocate(group.device(0).unwrap(), 1024, Placement::Device).unwrap();
    let (a, matrix) = (buffer.address(), Matrix::contiguous(buffer.address(), 8));
    let call = AgGemmCall { m: 4, a, b: matrix, scales: Scales::NONE, bias: None, c: matrix };
    for bad in [Scale::Tensor(flux::Address::NULL), Scale::Rows(flux::Address::NULL), Scale::Rows(a.add(2))] {
        for scales in [Scales { a: Some(bad), b: None }, Scales { a: None, b: Some(bad) }] {
            let part = GemmRsCall { m: 4, a: matrix, b: matrix, scales, bias: None, c: matrix };
            // SAFETY: both calls are refused before anything is enqueued.
            let refused = unsafe {
                [
                    gather.enqueue(0, &AgGemmCall { scales, ..call }, &streams[0]),
                    scatter.enqueue(0, &part, &streams[0]),
                ]
            };
            for refused in refused {
                assert!(matches!(refused, Err(Error::BadScale { .. })), "{refused:?}");
            }
        }
    }
    // C is of bf16, and so must be aligned to it.
    let odd = Matrix::contiguous(a.add(1), 8);
    let each_row = Scales { a: Some(Scale::Rows(a)), b: None };
    // SAFETY: as above.
    unsafe {
        let refused = gather.enqueue(0, &AgGemmCall { c: odd, ..call }, &streams[0]);
        assert!(matches!(refused, Err(Error::BadMatrix { name: "C", .. })), "{refused:?}");
        let calls = [AgGemmCall { scales: each_row, ..call }, call];
        let refused = gather.enqueue_all(&calls, &[&streams[0], &streams[1]]);
        assert!(matches!(refused, Err(Error::DifferentScales { rank: 1, has: false })), "{refused:?}");
    }
    let wide = AgGemm::new(&group, OpSpec::new(8, 8, 16, DType::Bf16)).unwrap();
    // SAFETY: as above.
    let refused = unsafe { wide.enqueue(0, &AgGemmCall { scales: each_row, ..call }, &streams[0]) };
    assert!(matches!(refused, Err(Error::BadScale { name: "A", .. })), "{refused:?}");
    let (ones, numbers) = ([E4m3::ONE; 64], [1.0; 7]);
    let place = || Whole::place(&group, &gather, &ones[..32], &ones, 4).unwrap();
    assert!(matches!(place().with_scales(&numbers, &[]).map(drop), Err(Error::BadScale { name: "A", .. })));
    assert!(matches!(place().with_scales(&[], &numbers).map(drop), Err(Error::BadScale { name: "B", .. })));
    assert!(matches!(place().with_bias(&[bf16::ONE; 7]).map(drop), Err(Error::BadBias { .. })));
    let wrong = Whole::place(&group, &wide, &ones[..32], &ones, 4).map(drop);
    assert!(matches!(wrong, Err(Error::WrongDType { .. })));
}
