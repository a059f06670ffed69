//! 8-bit elements and their scales on GPUs.

use cudarc::driver::CudaSlice;
use flux::{AgGemm, CudarcScale, CudarcScales, DType, E4m3, Error, OpSpec, Placement};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::groups::on_gpus as group_in;
use flux_tests::table::{self, Case};
use flux_tests::{epilogues, scaled};
use half::bf16;

#[test]
fn the_tables_are_right_in_every_way() {
    let group = group_in(Placement::Device);
    for case in table::CASES {
        for world_size in [1, 2, 3, 4, 5, 8] {
            table::check_e4m3(Case { world_size, ..case }, &group);
        }
        table::check_e4m3(case, &group_in(Placement::PinnedHost));
    }
    table::EDGES.into_iter().for_each(|case| table::check_e4m3(case, &group));
    table::check_e4m3(Case { m: 2100, n: 1544, k: 1040, world_size: 4 }, &group);
    epilogues::CASES.into_iter().for_each(|case| epilogues::check_e4m3(case, &group));
}

#[test]
fn sums_of_8_bit_elements_are_scaled() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        scaled::CASES.into_iter().for_each(|case| scaled::check(case, &group_in(placement)));
    }
    for world_size in 1..=8 {
        scaled::check(Case { m: 133, n: 48, k: 32 * world_size, world_size }, &group_in(Placement::Device));
        scaled::check_that_ranks_have_their_own(world_size, &group_in(Placement::Device));
    }
    for world_size in [1, 2] {
        scaled::check_that_nan_spreads(&group_in(Placement::Device)(world_size));
        scaled::check_all_products(&group_in(Placement::Device)(world_size));
    }
}

#[test]
fn scales_arrive_however_shards_are_pushed() {
    for world_size in [1, 2, 3, 5, 8] {
        scaled::check_pushes(world_size, &group_in(Placement::Device));
    }
}

/// Shapes for which the launcher chooses tiles of different sizes, whole, halved, and split along K.
#[test]
fn sums_of_8_bit_elements_are_scaled_in_tiles_of_all_sizes() {
    for (m, n, k) in [
        (40, 1000, 2048),
        (64, 4096, 128),
        (128, 2304, 1024),
        (500, 1544, 400),
        (1024, 3704, 256),
        (2100, 2304, 144),
        (4097, 3080, 128),
    ] {
        for world_size in [1, 2] {
            scaled::check(Case { m, n, k, world_size }, &group_in(Placement::Device));
        }
    }
}

/// Small enough for a memory checker: every kernel, aligned and not, every policy, both placements.
#[test]
fn small_cases_for_a_memory_checker() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        for case in
            [Case { m: 9, n: 24, k: 32, world_size: 2 }, Case { m: 130, n: 131, k: 21, world_size: 3 }]
        {
            scaled::check(case, &group_in(placement));
        }
    }
}

#[test]
fn cudarc_tensors_of_8_bit_elements_go_in_and_out() {
    let group = group_in(Placement::Device)(1);
    let (m, n, k) = (300, 264, 128);
    let (a, b) = (matrix::<E4m3>(m * k, Fill::Normal, 3), matrix::<E4m3>(n * k, Fill::Normal, 4));
    let expected: Vec<_> = product(&a, &b, m, n, k)
        .into_iter()
        .enumerate()
        .map(|(index, sum)| sum * 0.5 * (index % n + 1) as f64)
        .collect();
    let op = AgGemm::new(&group, OpSpec::new(n, k, m, DType::E4m3)).unwrap();
    let stream = group.device(0).unwrap().as_cuda().unwrap().context().new_stream().unwrap();
    let (a, b) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let a_scale = stream.clone_htod(&[0.5_f32]).unwrap();
    let b_scale = stream.clone_htod(&(1..=n).map(|row| row as f32).collect::<Vec<_>>()).unwrap();
    let mut c: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; m * n]).unwrap();
    let scales =
        CudarcScales { a: Some(CudarcScale::Tensor(&a_scale)), b: Some(CudarcScale::Rows(&b_scale)) };
    op.enqueue_cudarc(0, m, &a, &b, scales, None, &mut c, &stream).unwrap();
    assert!(relative_error(&stream.clone_dtoh(&c).unwrap(), &expected) < 4e-3);
    let few = CudarcScales { a: Some(CudarcScale::Rows(&a_scale)), b: None };
    let error = op.enqueue_cudarc(0, m, &a, &b, few, None, &mut c, &stream).unwrap_err();
    assert!(matches!(error, Error::BadScale { name: "A", .. }), "{error}");
    group.check().unwrap();
}
