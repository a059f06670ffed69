//! Folded and separate sums on the host backend.

use flux::{Buffer, DType, GemmRs, GemmRsCall, Matrix, OpSpec, PathPreference, Placement, Scales, Summation};
use flux_tests::data::{Fill, matrix, product};
use flux_tests::groups::on_host as group;
use flux_tests::table::{CASES, Case, EDGES};
use flux_tests::{run, sums};
use half::bf16;
use proptest::prelude::*;

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
    // Panels, and tiles that begin in one and end in the next.
    for (m, n, world_size) in [(300, 1290, 3), (1300, 520, 2), (70, 1600, 4)] {
        check(Case { m, n, k: 8, world_size });
    }
}

#[test]
fn sums_of_negative_zeros_are_zero() {
    (2..=8).for_each(|world_size| sums::check_of_negative_zeros(world_size, &group));
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

/// One thread enqueues all calls of a rank before it turns to the next: the first rank's GEMM waits for GEMMs that nobody has
/// enqueued yet.
#[test]
fn ranks_may_be_called_one_after_the_other() {
    const CALLS: usize = 5;
    let group = group(3);
    let (m, n, k) = (400, 150, 24);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let reference = product(&a, &b, m, n, k);
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    (spec.path, spec.summation) = (PathPreference::Fused, Summation::Folded);
    let op = GemmRs::new(&group, spec).unwrap();
    let mut ranks = Vec::new();
    for rank in group.local_ranks() {
        let stream = group.stream(rank).unwrap();
        let depth = op.depth(rank);
        let columns = |matrix: &[bf16]| -> Vec<bf16> {
            matrix.chunks(k).flat_map(|row| row[depth.clone()].to_vec()).collect()
        };
        let place = |values: &[bf16]| {
            let device = group.device(rank).unwrap();
            let buffer = Buffer::allocate(device, size_of_val(values), Placement::Device).unwrap();
            buffer.upload(&stream, 0, bytemuck::cast_slice(values)).unwrap();
            buffer
        };
        let operands = [place(&columns(&a)), place(&columns(&b))];
        let outputs = [(); CALLS].map(|()| place(&vec![bf16::NAN; op.rows(rank, m).len() * n]));
        let [a, b] = [0, 1].map(|index| Matrix::contiguous(operands[index].address(), depth.len()));
        for c in &outputs {
            let (scales, c) = (Scales::NONE, Matrix::contiguous(c.address(), n));
            let call = GemmRsCall { m, a, b, scales, bias: None, c };
            // SAFETY: all buffers outlive the downloads below.
            let choice = unsafe { op.enqueue(rank, &call, &stream) }.unwrap();
            assert_eq!(choice.summation, Some(Summation::Folded));
        }
        ranks.push((stream, operands, outputs));
    }
    for (rank, (stream, _, outputs)) in ranks.iter().enumerate() {
        let rows = op.rows(rank, m);
        for c in outputs {
            let mut result = vec![bf16::NAN; rows.len() * n];
            c.download(stream, 0, bytemuck::cast_slice_mut(&mut result)).unwrap();
            let expected = &reference[rows.start * n..rows.end * n];
            assert!(result.iter().zip(expected).all(|(c, r)| f64::from(*c) == *r), "rank {rank}");
        }
    }
    group.check().unwrap();
}
