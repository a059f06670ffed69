//! Whole operations on GPUs: the table for every number of ranks, with the peers' buffers in device memory and in pinned
//! host memory, and cudarc's tensors.

use cudarc::driver::{CudaSlice, DevicePtr};
use flux::{
    Activation, AgGemm, Backend, BackendChoice, Buffer, CudarcScales, DType, Delivery, E4m3, Element, Error,
    GemmAr, GemmRs, Group, GroupConfig, OpSpec, Operation, PathPreference, Placement, TileShape, Whole,
};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::groups::on_gpus as group_in;
use flux_tests::table::{Case, check, check_bits};
use flux_tests::{epilogues, pitched, sums};
use half::{bf16, f16};
use std::num::NonZeroU32;

#[test]
fn a_large_layer_is_right() {
    check(Case { m: 2100, n: 1544, k: 1032, world_size: 4 }, &group_in(Placement::Device));
}

/// All tiles that can be asked for, in every way of going about it: the same product.
#[test]
fn every_tile_that_can_be_asked_for_is_right() {
    let group = group_in(Placement::Device)(2);
    let paths = [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked];
    check_every_tile::<bf16>(&group, (1040, 520, 200), &paths);
}

/// A few blocks compute all tiles, many each, one behind the other: with fewer blocks of K than a tile's pieces take to leave, as many, and
/// more.
#[test]
fn tiles_that_follow_each_other_are_right() {
    let mut config = GroupConfig::default();
    (config.backend, config.sm_budget) = (BackendChoice::Cuda, NonZeroU32::new(8));
    let group = Group::local_with(2, config).unwrap();
    for k in [64, 256, 320, 464, 528, 1104] {
        let shape = (1040, 776, k);
        check_every_tile::<bf16>(&group, shape, &[PathPreference::Fused]);
        check_every_tile::<f16>(&group, shape, &[PathPreference::Fused]);
        check_every_tile::<E4m3>(&group, shape, &[PathPreference::Fused]);
    }
}

/// In all tiles, with and without a bias, an activation, scales of rows.
fn check_every_tile<E: Element>(group: &Group, (m, n, k): (usize, usize, usize), paths: &[PathPreference]) {
    let (a, b) = (matrix::<E>(m * k, Fill::Integers, 1), matrix::<E>(n * k, Fill::Integers, 2));
    let bias = matrix::<E::Result>(n, Fill::Integers, 3);
    let sums = product(&a, &b, m, n, k);
    let mut spec = OpSpec::new(n, k, m, E::DTYPE);
    spec.tile = Some(TileShape { rows: 1, columns: 1 });
    let Err(Error::NoSuchTile { possible, .. }) = AgGemm::new(group, spec.clone()) else { panic!("1x1") };
    // Powers of 2: products are as exact.
    let [a_scale, b_scale] = [(m, 5), (n, 3)]
        .map(|(rows, of)| (0..rows).map(|row| 0.25 * f32::from(1_u8 << (row % of))).collect::<Vec<_>>());
    let mut finishes = Vec::new();
    for (activation, has_bias) in [
        (Activation::None, false),
        (Activation::None, true),
        (Activation::Gelu, true),
        (Activation::SwiGlu, false),
    ] {
        for is_scaled in [false, true].into_iter().take(1 + usize::from(E::DTYPE.is_scaled())) {
            let scales: [&[f32]; 2] = if is_scaled { [&a_scale, &b_scale] } else { [&[], &[]] };
            let bias = if has_bias { &bias[..] } else { &[] };
            let scale = |index: usize| f64::from(a_scale[index / n]) * f64::from(b_scale[index % n]);
            let sums = sums.iter().enumerate();
            let sums: Vec<_> =
                sums.map(|(index, sum)| if is_scaled { sum * scale(index) } else { *sum }).collect();
            let expected = epilogues::finish(&sums, n, has_bias.then_some(bias), activation);
            finishes.push(Finish { activation, bias, scales, expected });
        }
    }
    for (tile, &path) in possible.into_iter().flat_map(|tile| paths.iter().map(move |path| (tile, path))) {
        (spec.tile, spec.path) = (Some(tile), path);
        let scatter = GemmRs::new(group, spec.clone()).unwrap();
        for finish in &finishes {
            let mut spec = spec.clone();
            spec.activation = finish.activation;
            let gather = AgGemm::new(group, spec).unwrap();
            assert_eq!(gather.explain(m).unwrap().chosen.tile, Some(tile));
            check_tile(group, &gather, (m, tile), (&a, &b), finish);
            if finish.activation == Activation::None {
                check_tile(group, &scatter, (m, tile), (&a, &b), finish);
            }
        }
    }
}

/// What becomes of a sum; no bias, or no scales, are empty.
struct Finish<'a, R> {
    activation: Activation,
    bias: &'a [R],
    scales: [&'a [f32]; 2],
    expected: Vec<f64>,
}

fn check_tile<E: Element>(
    group: &Group,
    op: &impl Operation,
    (m, tile): (usize, TileShape),
    (a, b): (&[E], &[E]),
    finish: &Finish<'_, E::Result>,
) {
    let mut whole = Whole::place(group, op, a, b, m).unwrap();
    whole = whole.with_scales(finish.scales[0], finish.scales[1]).unwrap();
    if !finish.bias.is_empty() {
        whole = whole.with_bias(finish.bias).unwrap();
    }
    assert_eq!(whole.enqueue().unwrap().tile, Some(tile));
    let c = whole.result().unwrap();
    #[allow(clippy::cast_possible_truncation)] // small integers, and powers of 2
    let exact = || finish.expected.iter().map(|&value| E::Result::round(value as f32));
    let is_right = match finish.activation {
        Activation::None => c.iter().copied().eq(exact()),
        _ => relative_error(&c, &finish.expected) < 4e-3,
    };
    let Finish { bias, scales, .. } = finish;
    assert!(is_right, "{tile}, {} of bias, {} scales: {:?}", bias.len(), scales[0].len(), op.spec());
}

#[test]
fn bits_do_not_depend_on_the_way_or_the_time() {
    check_bits(Case { m: 1301, n: 520, k: 400, world_size: 4 }, 20, &group_in(Placement::Device));
}

/// The ranks' streams begin their calls apart, by copies of random length; two sets of data take turns, so that what is left
/// of the call before would be noticed.
#[test]
fn a_thousand_runs_with_random_delays_give_the_same_bits() {
    const RUNS: usize = 1000;
    let (m, n, k, world_size) = (1040, 520, 200, 4);
    let group = group_in(Placement::Device)(world_size);
    let data = [1, 2].map(|seed| {
        (matrix::<bf16>(m * k, Fill::Normal, seed), matrix::<bf16>(n * k, Fill::Normal, seed + 10))
    });
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    (spec.path, spec.chunk_rows) = (PathPreference::Fused, Some(37));
    let gather = AgGemm::new(&group, spec.clone()).unwrap();
    check_with_delays(&group, &gather, m, &data, RUNS);
    for delivery in [Delivery::Direct, Delivery::Relayed] {
        spec.delivery = delivery;
        check_with_delays(&group, &GemmRs::new(&group, spec.clone()).unwrap(), m, &data, RUNS);
    }
    spec.one_shot_rows = Some(m);
    check_with_delays(&group, &GemmAr::new(&group, spec).unwrap(), m, &data, RUNS);
}

fn check_with_delays<Op: Operation>(
    group: &Group,
    op: &Op,
    m: usize,
    data: &[(Vec<bf16>, Vec<bf16>); 2],
    runs: usize,
) {
    const MOST: usize = 32 << 20; // about 20 µs
    let scratch: Vec<_> = group
        .local_ranks()
        .map(|rank| Buffer::allocate(group.device(rank).unwrap(), 2 * MOST, Placement::Device).unwrap())
        .collect();
    let places = data.each_ref().map(|(a, b)| Whole::place(group, op, a, b, m).unwrap());
    let mut expected: [Option<Vec<bf16>>; 2] = [None, None];
    let mut random = 1_u64;
    for run in 0..runs {
        let whole = &places[run % 2];
        for (stream, scratch) in whole.streams().zip(&scratch) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = usize::try_from(random >> 33).unwrap() % MOST;
            // SAFETY: the two halves of a buffer that outlives the stream's work, which the result waits for.
            unsafe { stream.copy(scratch.address(), scratch.address().add(MOST), bytes).unwrap() };
        }
        whole.enqueue().unwrap();
        let c = whole.result().unwrap();
        let expected = expected[run % 2].get_or_insert_with(|| c.clone());
        assert!(bytemuck::cast_slice::<_, u16>(expected) == bytemuck::cast_slice::<_, u16>(&c), "run {run}");
    }
}

/// Shapes for which Hopper's tiles are of all sizes, whole, halved, and with tails; too short to be split along K, which would
/// give other bits. Rows of C that do not begin at multiples of 16 bytes are not written in boxes.
fn folded_sums_have_the_bits_of_separate_ones(world_size: usize) {
    for (m, n, k) in [(500, 1544, 64), (1024, 3700, 64), (2100, 1160, 72), (300, 72, 8), (257, 96, 192)] {
        let case = Case { m, n, k: k * world_size, world_size };
        sums::check(case, is_hopper(), &group_in(Placement::Device));
    }
    let case = Case { m: 600, n: 520, k: 64 * world_size, world_size };
    sums::check(case, is_hopper(), &group_in(Placement::PinnedHost));
}

#[test]
fn folded_sums_of_two_have_the_bits_of_separate_ones() {
    folded_sums_have_the_bits_of_separate_ones(2);
    let large = Case { m: 4097, n: 3080, k: 128, world_size: 2 };
    sums::check(large, is_hopper(), &group_in(Placement::Device));
}

#[test]
fn folded_sums_of_three_have_the_bits_of_separate_ones() {
    folded_sums_have_the_bits_of_separate_ones(3);
}

#[test]
fn folded_sums_of_five_have_the_bits_of_separate_ones() {
    folded_sums_have_the_bits_of_separate_ones(5);
}

#[test]
fn folded_sums_of_eight_have_the_bits_of_separate_ones() {
    folded_sums_have_the_bits_of_separate_ones(8);
}

#[test]
fn sums_of_negative_zeros_are_zero() {
    for world_size in [2, 3, 8] {
        sums::check_of_negative_zeros(world_size, &group_in(Placement::Device));
    }
}

/// The portable kernel cannot fold: rows of A and B that do not begin at multiples of 16 bytes.
#[test]
fn sums_that_cannot_be_folded_are_separate() {
    for world_size in [2, 3] {
        sums::check(
            Case { m: 300, n: 200, k: 20 * world_size, world_size },
            false,
            &group_in(Placement::Device),
        );
    }
}

fn is_hopper() -> bool {
    let device = flux::Device::cuda(0).unwrap();
    device.as_cuda().unwrap().context().compute_capability().unwrap() == (9, 0)
}

#[test]
fn gaps_between_rows_stay_as_they_are() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        for world_size in [1, 3, 8] {
            let group = group_in(placement)(world_size);
            pitched::check_gemm_ar(&group);
            pitched::check_ag_gemm(&group);
        }
    }
}

#[test]
fn epilogues_are_right() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        epilogues::CASES.into_iter().for_each(|case| epilogues::check(case, &group_in(placement)));
    }
    for world_size in 1..=8 {
        epilogues::check(Case { m: 70, n: 38, k: 24, world_size }, &group_in(Placement::Device));
        epilogues::check_that_a_bias_is_added_once(world_size, &group_in(Placement::Device));
    }
}

/// Shapes for which the launcher chooses tiles of different sizes, whole, halved, and split along K.
#[test]
fn epilogues_are_right_in_tiles_of_all_sizes() {
    for (m, n, k) in [
        (40, 1000, 1024),
        (64, 4096, 64),
        (128, 2304, 512),
        (500, 1544, 200),
        (1024, 3700, 128),
        (2100, 2304, 72),
        (4097, 3080, 64),
    ] {
        for world_size in [1, 2] {
            epilogues::check(Case { m, n, k, world_size }, &group_in(Placement::Device));
        }
    }
}

/// Small enough for a memory checker: every kernel, aligned and not, every policy, both placements.
#[test]
fn small_cases_for_a_memory_checker() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        for case in
            [Case { m: 9, n: 24, k: 16, world_size: 2 }, Case { m: 130, n: 131, k: 21, world_size: 3 }]
        {
            check(case, &group_in(placement));
            epilogues::check(case, &group_in(placement));
        }
    }
}

#[test]
fn cudarc_tensors_go_in_and_out() {
    // One rank per GPU: ranks that share one are called together.
    let group = group_in(Placement::Device)(flux::Device::cuda_count().unwrap());
    let (m, n, k) = (300, 264, 128);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 3), matrix::<bf16>(n * k, Fill::Normal, 4));
    let bias = matrix::<bf16>(n, Fill::Normal, 5);
    let reference = epilogues::finish(&product(&a, &b, m, n, k), n, Some(&bias), Activation::None);
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::Fused;
    let gather = AgGemm::new(&group, spec.clone()).unwrap();
    let scatter = GemmRs::new(&group, spec.clone()).unwrap();
    let reduce = [m, 0].map(|rows| {
        let mut spec = spec.clone();
        spec.one_shot_rows = Some(rows);
        GemmAr::new(&group, spec).unwrap()
    });
    let columns = |matrix: &[bf16], range: std::ops::Range<usize>| -> Vec<bf16> {
        matrix.chunks(k).flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let (mut results, none) = (Vec::new(), CudarcScales::default());
    for rank in group.local_ranks() {
        let gpu = group.device(rank).unwrap().as_cuda().unwrap().clone();
        let stream = gpu.context().new_stream().unwrap();
        let (rows, own) = (gather.rows(rank, m), gather.columns(rank));
        let a_rows = stream.clone_htod(&a[rows.start * k..rows.end * k]).unwrap();
        let b_rows = stream.clone_htod(&b[own.start * k..own.end * k]).unwrap();
        let mut c: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; m * own.len()]).unwrap();
        let own_bias = stream.clone_htod(&bias[own.clone()]).unwrap();
        let bias = stream.clone_htod(&bias).unwrap();
        gather.enqueue_cudarc(rank, m, &a_rows, &b_rows, none, Some(&own_bias), &mut c, &stream).unwrap();
        let depth = scatter.depth(rank);
        let a_columns = stream.clone_htod(&columns(&a, depth.clone())).unwrap();
        let b_columns = stream.clone_htod(&columns(&b, depth)).unwrap();
        let mut d: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; rows.len() * n]).unwrap();
        scatter.enqueue_cudarc(rank, m, &a_columns, &b_columns, none, Some(&bias), &mut d, &stream).unwrap();
        let reduced = [&reduce[0], &reduce[1]].map(|op| {
            let mut e: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; m * n]).unwrap();
            op.enqueue_cudarc(rank, m, &a_columns, &b_columns, none, Some(&bias), &mut e, &stream).unwrap();
            e
        });

        let wrong = stream.clone_htod(&vec![f16::ZERO; m * k]).unwrap();
        let mut wrong_c = wrong.clone();
        let error =
            gather.enqueue_cudarc(rank, m, &wrong, &wrong, none, None, &mut wrong_c, &stream).unwrap_err();
        assert!(matches!(error, Error::WrongDType { .. }), "{error}");
        let short = stream.clone_htod(&[bf16::ZERO; 8]).unwrap();
        let error = gather.enqueue_cudarc(rank, m, &short, &b_rows, none, None, &mut c, &stream).unwrap_err();
        assert!(matches!(error, Error::BadMatrix { name: "A", .. }), "{error}");
        let few = Some(&short as &dyn DevicePtr<bf16>);
        let error = gather.enqueue_cudarc(rank, m, &a_rows, &b_rows, none, few, &mut c, &stream).unwrap_err();
        assert!(matches!(error, Error::BadBias { .. }), "{error}");
        results.push((stream, c, d, reduced));
    }
    let mut scattered = Vec::new();
    for (rank, (stream, c, d, reduced)) in results.iter().enumerate() {
        let own = gather.columns(rank);
        let expected: Vec<f64> = reference.chunks(n).flat_map(|row| row[own.clone()].to_vec()).collect();
        assert!(relative_error(&stream.clone_dtoh(c).unwrap(), &expected) < 4e-3);
        scattered.extend(stream.clone_dtoh(d).unwrap());
        for e in reduced {
            assert!(relative_error(&stream.clone_dtoh(e).unwrap(), &reference) < 4e-3);
        }
    }
    assert!(relative_error(&scattered, &reference) < 4e-3);
    group.check().unwrap();
}

#[test]
fn ranks_that_share_a_gpu_are_not_called_one_by_one() {
    let group = group_in(Placement::Device)(flux::Device::cuda_count().unwrap() + 1);
    let op = AgGemm::new(&group, OpSpec::new(8, 8, 8, DType::Bf16)).unwrap();
    let matrix = flux::Matrix::contiguous(flux::Address::NULL, 8);
    let call = flux::AgGemmCall {
        m: 0,
        a: flux::Address::NULL,
        b: matrix,
        scales: flux::Scales::NONE,
        bias: None,
        c: matrix,
    };
    // SAFETY: refused before anything is enqueued.
    let refused = unsafe { op.enqueue(0, &call, &group.stream(0).unwrap()) };
    assert!(matches!(refused, Err(Error::SharedDevice { rank: 0, .. })));
}

#[test]
fn auto_takes_the_gpu() {
    assert_eq!(Group::local(3).unwrap().backend(), Backend::Cuda);
}
