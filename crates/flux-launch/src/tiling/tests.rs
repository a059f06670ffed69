//! What the model chooses, and that it keeps to its limits.

use super::*;
use crate::catalogue::hopper_kernels;
use proptest::prelude::*;

fn problem(m: usize, world_size: usize, n: usize, k: usize) -> Problem {
    Problem { shards: Shards::new(m, world_size).unwrap(), n, k, aligned: true, to_slots: false }
}

fn chosen(dtype: DType, problem: &Problem, blocks: u64) -> Option<Tiling> {
    let candidates = hopper_kernels(dtype).unwrap().map(|kernel| Candidate::new(kernel, dtype));
    ways(candidates, problem, blocks, 1).first().map(|&(tiling, _)| tiling)
}

#[test]
fn tiles_fit_the_waves() {
    for (m, n, k, rows, columns, halved) in [
        (8192, 8192, 8192, 256, 192, 56), // 10.4 waves of the largest tile become 10.5
        (4096, 6144, 12288, 256, 192, 0), // 3.9 waves
        (1024, 7392, 8192, 128, 224, 0),  // exactly two waves
        (4096, 4096, 3584, 128, 256, 0),  // 3.9 waves
    ] {
        let tiling = chosen(DType::Bf16, &problem(m, 1, n, k), 132).unwrap();
        assert_eq!((tiling.shape.rows, tiling.shape.columns), (rows, columns), "{m} {n} {k}");
        assert_eq!(tiling.halved, halved, "{m} {n} {k}");
    }
}

#[test]
#[allow(clippy::cast_precision_loss)]
fn the_pace_is_what_was_measured() {
    for (n, k) in [(25536, 8192), (16384, 8192), (12736, 8192), (8512, 8192), (8192, 12288)] {
        let problem = problem(8192, 8, n, k);
        let candidates = hopper_kernels(DType::Bf16).unwrap();
        let candidates = candidates.map(|kernel| Candidate::new(kernel, DType::Bf16));
        let of_192 = Some(TileShape { rows: 256, columns: 192 });
        let (tiling, cycles) = cut_into(of_192, ways(candidates, &problem, 132, 1))[0];
        let pace = Pace::new(&problem, &tiling, cycles, 132);
        assert_eq!((pace.shape.rows, pace.half_rows), (256, 128), "{n} {k}");
        // 132 µs for 256 × 192 × 8192.
        let per_8192 = pace.tile_us * 192.0 / pace.shape.columns as f64 * 8192.0 / k as f64;
        assert!((127.0..140.0).contains(&per_8192), "{n} {k}: {pace:?}");
    }
}

#[test]
fn few_rows_take_low_tiles_and_all_sms() {
    let tiling = chosen(DType::Bf16, &problem(1, 1, 4096, 8192), 132).unwrap();
    assert_eq!(tiling.shape.rows, 64);
    let tiles = 4096 / tiling.shape.columns;
    assert!(tiles + tiling.split_tiles * (tiling.parts - 1) > 66, "{tiling:?}");
}

/// Where memory bounds, all SMs are to load.
#[test]
fn tiles_are_narrowed_until_all_sms_take_part() {
    for (n, k, columns) in [(6144, 12288, 48), (12288, 6144, 96), (7168, 8192, 56), (8192, 3584, 64)] {
        let tiling = chosen(DType::Bf16, &problem(16, 1, n, k), 132).unwrap();
        assert_eq!((tiling.shape.rows, tiling.shape.columns), (64, columns), "{n} {k}");
        let to_slots = chosen(DType::Bf16, &Problem { to_slots: true, ..problem(16, 1, n, k) }, 132).unwrap();
        assert!(to_slots.shape.columns.is_multiple_of(16), "{to_slots:?}"); // whole pieces
    }
}

#[test]
fn blocks_come_early_where_that_was_faster() {
    for (dtype, m, n, k, early) in [
        (DType::Bf16, 64, 7168, 4096, true),
        (DType::Bf16, 64, 8192, 3696, true),
        (DType::Bf16, 256, 7168, 4096, true),
        (DType::Bf16, 256, 8192, 3696, false), // rows touch two lines of the cache
        (DType::E4m3, 64, 6144, 12288, false), // split
        (DType::E4m3, 4096, 8192, 3696, false), // in pairs
    ] {
        let tiling = chosen(dtype, &problem(m, 1, n, k), 132).unwrap();
        let [m, n, k] = [m, n, k].map(|extent| u32::try_from(extent).unwrap());
        let gemm = GemmParams { m, n, k, ..GemmParams::default() };
        assert_eq!(tiling.may_begin_early(&gemm, dtype), early, "{dtype} {m} {n} {k}: {tiling:?}");
    }
}

/// Rows that touch two lines of the cache are worth a pair of blocks, where the kernel knows pairs.
#[test]
fn what_loads_bound_is_loaded_in_pairs() {
    let sharing = |dtype, m, n, k| chosen(dtype, &problem(m, 1, n, k), 132).unwrap().sharing;
    assert_eq!(sharing(DType::E4m3, 4096, 8192, 3696), Sharing::B);
    assert_eq!(sharing(DType::E4m3, 128, 12288, 3696), Sharing::A); // one row of tiles has no B in common
    assert_eq!(sharing(DType::E4m3, 1, 8192, 3696), Sharing::None); // pairs come late, which takes longer than they gain
    assert_eq!(sharing(DType::E4m3, 4096, 8192, 4096), Sharing::None);
    assert_eq!(sharing(DType::Bf16, 4096, 8192, 3696), Sharing::None);
    let alone = hopper_kernels(DType::E4m3).unwrap().map(|kernel| Candidate::new(kernel, DType::E4m3));
    let ways = ways(alone, &problem(4096, 1, 8192, 3696), 132, 2);
    assert!(ways.iter().all(|(tiling, _)| !tiling.is_in_pairs()));
}

/// Each kernel can be had whatever the model says of it, and whole: not narrowed.
#[test]
fn what_is_asked_for_is_cut() {
    let kernels: Vec<_> = hopper_kernels(DType::Bf16).unwrap().collect();
    for problem in [problem(16, 1, 6144, 12288), problem(4096, 8, 6144, 12288)] {
        let candidates = kernels.iter().map(|kernel| Candidate::new(kernel, DType::Bf16));
        let all = ways(candidates, &problem, 132, 1);
        for kernel in &kernels {
            let tile = TileShape { rows: kernel.tile_m as usize, columns: kernel.tile_n as usize };
            let asked = cut_into(Some(tile), all.clone());
            assert!(!asked.is_empty() && asked.iter().all(|(tiling, _)| tiling.shape == tile), "{tile}");
        }
        let none = TileShape { rows: 64, columns: 7 };
        assert_eq!([None, Some(none)].map(|tile| cut_into(tile, all.clone()).len()), [all.len(); 2]);
    }
}

#[test]
fn what_an_order_cannot_number_is_not_chosen() {
    assert!(chosen(DType::Bf16, &problem(64, 1, 1 << 30, 64), 132).is_none());
    let high = chosen(DType::Bf16, &problem(3_000_000, 1, 64, 64), 132).unwrap();
    assert!(3 * 3_000_000_usize.div_ceil(high.shape.rows) <= 1 << 16, "{high:?}");
}

proptest! {
    #[test]
    fn every_choice_fits_its_limits(
        m in 0_usize..20_000, world_size in 1_usize..9, n in 1_usize..20_000, k in 1_usize..20_000, blocks in 1_u64..140,
        wide: bool,
    ) {
        let problem = problem(m, world_size, n, k);
        let dtype = if wide { DType::F16 } else { DType::E4m3 };
        let tiling = chosen(dtype, &problem, blocks).unwrap();
        let TileShape { rows, columns } = tiling.shape;
        let TileKernel::Hopper { columns: of_kernel } = tiling.kernel else { panic!("{tiling:?}") };
        prop_assert!(columns >= least_columns(u64::from(of_kernel)) && columns <= of_kernel as usize);
        let row_tiles: usize = (0..world_size).map(|shard| problem.shards.rows(shard).div_ceil(rows)).sum();
        let tiles = row_tiles * n.div_ceil(columns);
        prop_assert!(tiling.halved <= tiles && (tiling.halved == 0 || rows == 256));
        prop_assert!(tiling.split_tiles <= tiles && tiling.parts >= 1);
        prop_assert!(tiling.parts == 1 || tiling.parts <= (k * dtype.bytes()).div_ceil(128));
        prop_assert_eq!(tiling.split_tiles > 0, tiling.parts > 1);
        prop_assert!(tiling.halved == 0 || tiling.parts == 1);
        let scratch = tiling.split_tiles * tiling.parts * rows * columns * 4;
        prop_assert!(scratch as u64 <= SCRATCH_BYTES_PER_BLOCK * blocks);
    }
}
