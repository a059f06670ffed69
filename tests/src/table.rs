//! The table of shapes that every backend must get right, in every way of going about it.

use crate::data::{Fill, matrix, product, relative_error};
use crate::run;
use flux::{
    AgGemm, DType, Delivery, Direction, E4m3, Element, End, GemmAr, GemmRs, Group, Levels, OpSpec, Path,
    PathPreference, Summation, Sweeps, Taper,
};
use half::{bf16, f16};

/// A whole multiplication and a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Rows of A.
    pub m: usize,
    /// Rows of B.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
    /// Ranks.
    pub world_size: usize,
}

const fn case(m: usize, n: usize, k: usize, world_size: usize) -> Case {
    Case { m, n, k, world_size }
}

/// Tails, shards that are no multiple of anything, fewer rows than ranks, odd pitches.
pub const CASES: [Case; 7] = [
    case(257, 384, 512, 4),
    case(1, 64, 64, 8),
    case(1000, 136, 264, 3),
    case(7, 8, 8, 5),
    case(4097, 128, 72, 2),
    case(64, 1000, 1000, 8),
    case(130, 96, 20, 4),
];

/// Nothing to do, and less than one element for each rank.
pub const EDGES: [Case; 4] = [case(0, 16, 16, 3), case(5, 2, 16, 4), case(9, 16, 2, 4), case(3, 1, 1, 1)];

/// Sums are folded in one of two ways of delivery: whoever sums cannot tell these apart (`sums.rs` tries all four).
pub(crate) const WAYS: [(PathPreference, Delivery, Summation, Path); 4] = [
    (PathPreference::Fused, Delivery::Direct, Summation::Separate, Path::Fused),
    (PathPreference::Fused, Delivery::Relayed, Summation::Folded, Path::Fused),
    (PathPreference::Unfused, Delivery::Auto, Summation::Auto, Path::Unfused),
    (PathPreference::Chunked, Delivery::Auto, Summation::Auto, Path::Chunked),
];

/// Rows of a chunk, which are cut finer, and how many shards are swept together. Single rows, but for many rows: those would mostly
/// measure how long the driver takes. Whole shards, but for those at one end; and, where sweeps are of shards, those swept together.
fn cuts(m: usize, direction: Direction, path: PathPreference) -> Vec<(Option<usize>, Taper, Sweeps)> {
    let fewest = if m <= 300 { 1 } else { m / 50 };
    let (end, sweeps) = match direction {
        Direction::Push => (End::Last, Sweeps::growing(1)),
        Direction::Pull => (End::First, Sweeps::TWO),
    };
    let mut cuts = vec![
        (Some(fewest), Taper::NONE, Sweeps::ONE_BY_ONE),
        (Some(37), Taper::NONE, Sweeps::ONE_BY_ONE),
        (None, Taper::towards(end, [3, 2, 1], 24), Sweeps::ONE_BY_ONE),
    ];
    if path == PathPreference::Fused {
        cuts.push((None, Taper::NONE, sweeps));
    }
    cuts
}

pub(crate) fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 | DType::E4m3 => 4e-3,
        DType::F16 => 6e-4,
    }
}

/// Checks `case` with all operations, both 16-bit element types, normal data and integers, every way, fused with tiles delivered
/// directly and relayed, push and pull, and all chunk sizes, finer at one end too; GEMM+AllReduce also one-shot and in two steps. `group` makes a group of that many ranks.
pub fn check(case: Case, group: &dyn Fn(usize) -> Group) {
    check_dtype::<bf16>(case, group);
    check_dtype::<f16>(case, group);
}

/// [`check`] with one element type.
pub fn check_bf16(case: Case, group: &dyn Fn(usize) -> Group) {
    check_dtype::<bf16>(case, group);
}

/// [`check`] with 8-bit elements, without scales.
pub fn check_e4m3(case: Case, group: &dyn Fn(usize) -> Group) {
    check_dtype::<E4m3>(case, group);
}

fn check_dtype<E: Element>(case: Case, group: &dyn Fn(usize) -> Group) {
    let Case { m, n, k, world_size } = case;
    let group = group(world_size);
    let data = [(1, Fill::Normal), (2, Fill::Integers)].map(|(seed, fill)| {
        let (a, b) = (matrix::<E>(m * k, fill, seed), matrix::<E>(n * k, fill, seed + 10));
        let reference = product(&a, &b, m, n, k);
        (fill, a, b, reference)
    });
    for (path, delivery, summation, expected_path) in WAYS {
        for direction in [Direction::Push, Direction::Pull] {
            for (chunk_rows, taper, sweeps) in cuts(m, direction, path) {
                let mut spec = OpSpec::new(n, k, m, E::DTYPE);
                (spec.path, spec.direction, spec.chunk_rows) = (path, Some(direction), chunk_rows);
                (spec.taper, spec.sweeps) = (Some(taper), Some(sweeps));
                (spec.delivery, spec.summation) = (delivery, summation);
                let gathered = AgGemm::new(&group, spec.clone()).unwrap();
                let scattered = GemmRs::new(&group, spec.clone()).unwrap();
                let [one_shot, in_two_steps] = [m, 0].map(|rows| {
                    let mut spec = spec.clone();
                    spec.one_shot_rows = Some(rows);
                    GemmAr::new(&group, spec).unwrap()
                });
                for (fill, a, b, reference) in &data {
                    let outcomes = [
                        ("ag-gemm", run::ag_gemm(&group, &gathered, m, a, b)),
                        ("gemm-rs", run::gemm_rs(&group, &scattered, m, a, b)),
                        ("one-shot gemm-ar", run::gemm_ar(&group, &one_shot, m, a, b)),
                        ("gemm-ar in two steps", run::gemm_ar(&group, &in_two_steps, m, a, b)),
                    ];
                    // GEMMs that put by themselves are of another kernel than those of the same call that do not; and one-shot nothing
                    // is summed in two levels.
                    let mut sums: [Option<Vec<E::Result>>; 3] = [None, None, None];
                    for (op, outcome) in outcomes {
                        let what = format!(
                            "{op} {case:?} {} {fill:?} {path:?} {delivery} {direction} chunks of {chunk_rows:?}, sweeps {sweeps}",
                            E::DTYPE
                        );
                        let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
                        // One-shot, there are no shards to go one by one; no rows at all are always reduced so.
                        let one_shot = op == "one-shot gemm-ar" || (op == "gemm-ar in two steps" && m == 0);
                        let expected_path = match path {
                            PathPreference::Chunked if one_shot => Path::Unfused,
                            _ => expected_path,
                        };
                        assert_eq!(outcome.choice.path, expected_path, "{what}");
                        // One-shot, all rows are one shard.
                        let swept = if one_shot { Sweeps::ONE_BY_ONE } else { sweeps };
                        assert!(path != PathPreference::Fused || outcome.choice.sweeps == swept, "{what}");
                        let expected_delivery = match (op, path) {
                            ("ag-gemm", _) | (_, PathPreference::Unfused | PathPreference::Chunked) => None,
                            _ if one_shot => Some(Delivery::Direct),
                            _ => Some(delivery),
                        };
                        assert_eq!(outcome.choice.delivery, expected_delivery, "{what}");
                        let summed = outcome.choice.summation;
                        assert_eq!(summed.is_some(), expected_delivery.is_some(), "{what}");
                        let unasked = summation == Summation::Separate && summed == Some(Summation::Folded);
                        assert!(!unasked, "{what}");
                        let error = relative_error(&outcome.c, reference);
                        assert!(error < bound(E::DTYPE), "{what}: error {error:e}");
                        if op != "ag-gemm" {
                            let kind = match scattered.levels() {
                                Levels::Two if one_shot => 2,
                                _ => usize::from(outcome.choice.why.contains("itself puts")),
                            };
                            let sums = sums[kind].get_or_insert_with(|| outcome.c.clone());
                            let same = bytemuck::cast_slice::<E::Result, u8>(sums)
                                == bytemuck::cast_slice::<_, u8>(&outcome.c);
                            assert!(same, "{what}: other bits than gemm-rs");
                        }
                        if *fill == Fill::Integers {
                            #[allow(clippy::cast_possible_truncation)] // small integers
                            let exact = reference.iter().map(|&value| E::Result::round(value as f32));
                            assert!(outcome.c.iter().copied().eq(exact), "{what}: integers are not exact");
                        }
                    }
                }
            }
        }
    }
}

/// Checks that all ways of GEMM+ReduceScatter, and of GEMM+AllReduce in both forms (unless one of them sums in two levels), give the
/// same bits, on every rank, however
/// their tiles are delivered, `runs` times over, and that so do those of AllGather+GEMM; one operation makes all its calls, with other numbers of rows
/// in between, some of which GEMM+AllReduce reduces in the other form.
pub fn check_bits(case: Case, runs: usize, group: &dyn Fn(usize) -> Group) {
    let Case { m, n, k, world_size } = case;
    let group = group(world_size);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 5), matrix::<bf16>(n * k, Fill::Normal, 6));
    let bits = |c: Vec<bf16>| c.into_iter().map(bf16::to_bits).collect::<Vec<_>>();
    let mut first = (None, None, None);
    for (path, delivery, summation, _) in WAYS {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.delivery, spec.summation) = (path, delivery, summation);
        let gathered = AgGemm::new(&group, spec.clone()).unwrap();
        let scattered = GemmRs::new(&group, spec.clone()).unwrap();
        let reduced = [m, m / 2, 0].map(|rows| {
            let mut spec = spec.clone();
            spec.one_shot_rows = Some(rows);
            GemmAr::new(&group, spec).unwrap()
        });
        for run in 0..runs {
            let c = bits(run::ag_gemm(&group, &gathered, m, &a, &b).unwrap().c);
            assert!(*first.0.get_or_insert_with(|| c.clone()) == c, "ag-gemm {path:?} run {run} differs");
            let c = bits(run::gemm_rs(&group, &scattered, m, &a, &b).unwrap().c);
            let same = *first.1.get_or_insert_with(|| c.clone()) == c;
            assert!(same, "gemm-rs {path:?} {delivery} run {run} differs");
            let fewer = m * (run % 3) / 3;
            for op in &reduced {
                let (rows, c) = (op.one_shot_rows(), bits(run::gemm_ar(&group, op, m, &a, &b).unwrap().c));
                let other = op.levels() == Levels::Two && m <= rows;
                let first = if other {
                    first.2.get_or_insert_with(|| c.clone())
                } else {
                    first.1.get_or_insert_with(|| c.clone())
                };
                assert!(*first == c, "gemm-ar {path:?} {delivery} {rows} run {run} differs from gemm-rs");
                run::gemm_ar(&group, op, fewer, &a[..fewer * k], &b).unwrap();
            }
            run::ag_gemm(&group, &gathered, fewer, &a[..fewer * k], &b).unwrap();
            run::gemm_rs(&group, &scattered, fewer, &a[..fewer * k], &b).unwrap();
        }
    }
}
