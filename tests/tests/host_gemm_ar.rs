//! GEMM+AllReduce on the host backend, beyond the table: pitches, both forms in flight, a thread per rank.

use flux::{AgGemm, Buffer, DType, Direction, Error, GemmAr, GemmArCall, Matrix, OpSpec, Placement, Whole};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::groups::on_host as group;
use flux_tests::{pitched, run};
use half::bf16;

#[test]
fn gaps_between_rows_stay_as_they_are() {
    for world_size in [1, 3, 4] {
        pitched::check_gemm_ar(&group(world_size));
    }
}

/// Few rows and many, in turn, all in flight at once: the forms keep their signals apart.
#[test]
fn the_forms_take_turns() {
    for direction in [Direction::Push, Direction::Pull] {
        let group = group(3);
        let (max_m, n, k) = (200, 70, 30);
        let mut spec = OpSpec::new(n, k, max_m, DType::Bf16);
        (spec.one_shot_rows, spec.direction) = (Some(100), Some(direction));
        let op = GemmAr::new(&group, spec).unwrap();
        let (a, b) = (matrix::<bf16>(max_m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        let rows = [200, 7, 150, 100, 101, 0, 1, 64, 199, 3, 2, 5, 120, 99, 130, 200, 200, 1];
        let calls = rows.map(|m| Whole::place(&group, &op, &a[..m * k], &b, m).unwrap());
        for call in &calls {
            call.enqueue().unwrap();
        }
        for (call, m) in calls.iter().zip(rows) {
            let reference = product(&a[..m * k], &b, m, n, k);
            let c = call.result().unwrap();
            assert!(c.iter().zip(&reference).all(|(c, r)| f64::from(*c) == *r), "m = {m}, {direction}");
        }
    }
}

/// What is chosen, and that it says why.
#[test]
fn the_choice_follows_the_rows() {
    let group = group(4);
    let (n, k, max_m) = (64, 32, 600);
    let op = GemmAr::new(&group, OpSpec::new(n, k, max_m, DType::Bf16)).unwrap();
    let few = op.one_shot_rows();
    assert!((1..=256).contains(&few), "{few}");
    let (a, b) = (matrix::<bf16>(max_m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for (m, why) in [(few, "few rows"), (few + 1, "gathered"), (max_m, "gathered")] {
        let outcome = run::gemm_ar(&group, &op, m, &a[..m * k], &b).unwrap();
        let path = op.explain(m).unwrap().chosen.path;
        assert!(outcome.choice.path == path && outcome.choice.why.contains(why), "{:?}", outcome.choice);
        let error = relative_error(&outcome.c, &product(&a[..m * k], &b, m, n, k));
        assert!(error < 4e-3, "m = {m}: {error:e}");
    }
}

/// Threads, one per rank, each enqueueing all its calls at once.
#[test]
fn ranks_on_their_own_threads_agree() {
    let group = group(4);
    let (m, n, k, calls) = (160, 96, 64, 30);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let reference = product(&a, &b, m, n, k);
    for one_shot_rows in [m, 0] {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        spec.one_shot_rows = Some(one_shot_rows);
        let op = GemmAr::new(&group, spec).unwrap();
        std::thread::scope(|scope| {
            for rank in group.local_ranks() {
                let (group, op, a, b, reference) = (&group, &op, &a, &b, &reference);
                scope.spawn(move || {
                    let (stream, depth) = (group.stream(rank).unwrap(), op.depth(rank));
                    let place = |values: &[bf16]| {
                        let (device, bytes) = (group.device(rank).unwrap(), size_of_val(values));
                        let buffer = Buffer::allocate(device, bytes, Placement::Device).unwrap();
                        buffer.upload(&stream, 0, bytemuck::cast_slice(values)).unwrap();
                        buffer
                    };
                    let cut = |whole: &[bf16]| -> Vec<bf16> {
                        whole.chunks(k).flat_map(|row| row[depth.clone()].to_vec()).collect()
                    };
                    let (a, b) = (place(&cut(a)), place(&cut(b)));
                    let outputs: Vec<_> = (0..calls).map(|_| place(&vec![bf16::NAN; m * n])).collect();
                    for c in &outputs {
                        let call = GemmArCall {
                            m,
                            a: Matrix::contiguous(a.address(), depth.len()),
                            b: Matrix::contiguous(b.address(), depth.len()),
                            scales: flux::Scales::NONE,
                            bias: None,
                            c: Matrix::contiguous(c.address(), n),
                        };
                        // SAFETY: all buffers outlive the downloads below.
                        unsafe { op.enqueue(rank, &call, &stream).unwrap() };
                    }
                    for c in &outputs {
                        let mut result = vec![bf16::NAN; m * n];
                        c.download(&stream, 0, bytemuck::cast_slice_mut(&mut result)).unwrap();
                        assert!(
                            result.iter().zip(reference).all(|(c, r)| f64::from(*c) == *r),
                            "rank {rank}"
                        );
                    }
                });
            }
        });
    }
    group.check().unwrap();
}

/// A layer without sequence parallelism: the columns of one operation are what the other sums over.
#[test]
fn it_follows_a_column_parallel_layer() {
    let group = group(3);
    let (m, hidden, inner) = (300, 24, 40);
    let gather = AgGemm::new(&group, OpSpec::new(inner, hidden, m, DType::Bf16)).unwrap();
    let reduce = GemmAr::new(&group, OpSpec::new(hidden, inner, m, DType::Bf16)).unwrap();
    let (x, up) = (matrix::<bf16>(m * hidden, Fill::Integers, 1), matrix(inner * hidden, Fill::Integers, 2));
    let down = matrix::<bf16>(hidden * inner, Fill::Integers, 3);
    let first = Whole::place(&group, &gather, &x, &up, m).unwrap();
    let second = Whole::after(&group, &reduce, &first, &down).unwrap();
    for _ in 0..20 {
        first.enqueue().unwrap();
        second.enqueue().unwrap();
    }
    let between = first.result().unwrap();
    let error = relative_error(&second.result().unwrap(), &product(&between, &down, m, hidden, inner));
    assert!(error < 4e-3, "{error:e}");
}

#[test]
fn what_a_caller_can_get_wrong_is_an_error() {
    let group = group(2);
    let op = GemmAr::new(&group, OpSpec::new(8, 8, 16, DType::Bf16)).unwrap();
    let stream = group.stream(0).unwrap();
    let buffer = Buffer::allocate(group.device(0).unwrap(), 1024, Placement::Device).unwrap();
    let fine = Matrix::contiguous(buffer.address(), 8);
    let call = GemmArCall { m: 4, a: fine, b: fine, scales: flux::Scales::NONE, bias: None, c: fine };
    // SAFETY: every call is refused before anything is enqueued.
    let enqueue = |call: GemmArCall| unsafe { op.enqueue(0, &call, &stream) };
    let narrow = Matrix { pitch: 3, ..fine };
    for (name, call) in [
        ("A", GemmArCall { a: narrow, ..call }),
        ("B", GemmArCall { b: narrow, ..call }),
        ("C", GemmArCall { c: Matrix { pitch: 7, ..fine }, ..call }),
    ] {
        assert!(matches!(enqueue(call), Err(Error::BadMatrix { name: found, .. }) if found == name));
    }
    assert!(matches!(enqueue(GemmArCall { m: 17, ..call }), Err(Error::TooManyRows { m: 17, max_m: 16 })));
    for rows in [0, 1, usize::MAX] {
        let mut spec = OpSpec::new(8, 8, 16, DType::Bf16);
        spec.one_shot_rows = Some(rows);
        assert_eq!(GemmAr::new(&group, spec).unwrap().one_shot_rows(), rows.min(16));
    }
    let mut spec = OpSpec::new(8, 8, 16, DType::Bf16);
    spec.chunk_rows = Some(0);
    assert!(matches!(GemmAr::new(&group, spec), Err(Error::Transport(_))));
}
