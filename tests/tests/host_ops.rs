//! Whole operations on the host backend: the full table, the edges, bits, and calls in a row.

use flux::{
    AgGemm, BackendChoice, Buffer, DType, Delivery, Direction, Error, GemmAr, GemmRs, Group, GroupConfig,
    OpSpec, Operation, Path, PathPreference, Placement, Whole,
};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::groups::{on_host as group, on_host_in};
use flux_tests::run;
use flux_tests::table::{CASES, Case, EDGES, check, check_bits};
use half::bf16;

#[test]
fn the_table_is_right_in_every_way() {
    CASES.into_iter().for_each(|case| check(case, &group));
}

#[test]
fn the_edges_are_right_in_every_way() {
    EDGES.into_iter().for_each(|case| check(case, &group));
}

#[test]
fn every_world_size_is_right() {
    for world_size in [1, 2, 3, 4, 5, 6, 7, 8, 16] {
        check(Case { m: 133, n: 40, k: 24, world_size }, &group);
    }
}

#[test]
fn bits_do_not_depend_on_the_way_or_the_time() {
    check_bits(Case { m: 301, n: 200, k: 100, world_size: 4 }, 20, &group);
}

/// As where GPUs do not reach each other's memory: shards are fetched, and slots before they are summed.
#[test]
fn what_goes_through_the_hosts_memory_is_right() {
    let group = on_host_in(Placement::PinnedHost);
    check(Case { m: 0, n: 16, k: 16, world_size: 3 }, &group);
    check(Case { m: 5, n: 2, k: 16, world_size: 4 }, &group);
    for world_size in [1, 2, 3, 4, 5, 8] {
        check(Case { m: 133, n: 40, k: 24, world_size }, &group);
    }
    check_bits(Case { m: 1301, n: 200, k: 100, world_size: 4 }, 10, &group);
}

/// Calls in a row without a host wait in between, each with its own output: reuse is safe, and later calls do not
/// disturb earlier ones.
#[test]
fn many_calls_in_a_row_keep_apart() {
    let group = group(3);
    let (n, k, max_m) = (70, 30, 200);
    let op = GemmRs::new(&group, OpSpec::new(n, k, max_m, DType::Bf16)).unwrap();
    let (a, b) = (matrix::<bf16>(max_m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for m in [200, 7, 150, 200, 0, 1, 64, 199, 3, 2, 5, 100, 101, 102, 200] {
        let outcome = run::gemm_rs(&group, &op, m, &a[..m * k], &b).unwrap();
        let error = relative_error(&outcome.c, &product(&a[..m * k], &b, m, n, k));
        assert!(error < 4e-3, "m = {m}: {error:e}");
    }
}

/// Threads, one per rank, each enqueueing all its calls at once.
#[test]
fn ranks_on_their_own_threads_agree() {
    let group = group(4);
    let (m, n, k, calls) = (160, 96, 64, 30);
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::Fused;
    spec.chunk_rows = Some(7);
    let op = AgGemm::new(&group, spec).unwrap();
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let reference = product(&a, &b, m, n, k);
    std::thread::scope(|scope| {
        for rank in group.local_ranks() {
            let (group, op, a, b, reference) = (&group, &op, &a, &b, &reference);
            scope.spawn(move || {
                let device = group.device(rank).unwrap();
                let stream = group.stream(rank).unwrap();
                let columns = op.columns(rank);
                let place = |values: &[bf16]| {
                    let buffer = Buffer::allocate(device, size_of_val(values), Placement::Device).unwrap();
                    buffer.upload(&stream, 0, bytemuck::cast_slice(values)).unwrap();
                    buffer
                };
                let rows = op.rows(rank, m);
                let a = place(&a[rows.start * k..rows.end * k]);
                let b = place(&b[columns.start * k..columns.end * k]);
                let outputs: Vec<_> =
                    (0..calls).map(|_| place(&vec![bf16::NAN; m * columns.len()])).collect();
                for c in &outputs {
                    let call = flux::AgGemmCall {
                        m,
                        a: a.address(),
                        b: flux::Matrix::contiguous(b.address(), k),
                        scales: flux::Scales::NONE,
                        bias: None,
                        c: flux::Matrix::contiguous(c.address(), columns.len()),
                    };
                    // SAFETY: all buffers outlive the downloads below.
                    unsafe { op.enqueue(rank, &call, &stream).unwrap() };
                }
                for c in &outputs {
                    let mut result = vec![bf16::NAN; m * columns.len()];
                    c.download(&stream, 0, bytemuck::cast_slice_mut(&mut result)).unwrap();
                    for (row, values) in result.chunks(columns.len()).enumerate() {
                        let expected = &reference[row * n..][columns.clone()];
                        assert!(values.iter().zip(expected).all(|(c, r)| f64::from(*c) == *r), "rank {rank}");
                    }
                }
            });
        }
    });
    group.check().unwrap();
}

/// Memory to relay tiles from is there only if some call may relay them, and the choice says which way they went.
#[test]
fn tiles_are_relayed_only_where_asked_on_the_host() {
    let group = group(2);
    let (m, n, k) = (600, 20, 16);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for (delivery, path, used, bytes, why) in [
        (Delivery::Auto, PathPreference::Auto, Some(Delivery::Direct), 0, "directly: on the host"),
        (Delivery::Direct, PathPreference::Auto, Some(Delivery::Direct), 0, "directly, as asked"),
        (
            Delivery::Relayed,
            PathPreference::Fused,
            Some(Delivery::Relayed),
            600 * 24 * 2,
            "relayed, as asked",
        ),
        (Delivery::Relayed, PathPreference::Auto, Some(Delivery::Relayed), 600 * 24 * 2, "relayed, as asked"),
        (Delivery::Relayed, PathPreference::Unfused, None, 0, "as asked"),
    ] {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.delivery, spec.path, spec.one_shot_rows) = (delivery, path, Some(0));
        let scatter = GemmRs::new(&group, spec.clone()).unwrap();
        let reduce = GemmAr::new(&group, spec).unwrap();
        assert_eq!((scatter.relayed_tiles(1).1, reduce.buffers(1)[3].1), (bytes, bytes));
        for choice in [
            run::gemm_rs(&group, &scatter, m, &a, &b).unwrap().choice,
            run::gemm_ar(&group, &reduce, m, &a, &b).unwrap().choice,
        ] {
            assert!(choice.delivery == used && choice.why.contains(why), "{choice:?}");
        }
    }
}

#[test]
fn what_a_caller_can_get_wrong_is_an_error() {
    assert!(matches!(Group::local(0), Err(Error::Swizzle(_))));
    assert!(matches!(Group::local(usize::MAX), Err(Error::TooManyRanks { .. })));
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Host;
    config.wait_budget = std::time::Duration::from_millis(100);
    let group = Group::local_with(2, config).unwrap();
    let op = AgGemm::new(&group, OpSpec::new(8, 8, 16, DType::Bf16)).unwrap();
    let stream = group.stream(0).unwrap();
    let buffer = Buffer::allocate(group.device(0).unwrap(), 1024, Placement::Device).unwrap();
    let matrix = flux::Matrix::contiguous(buffer.address(), 8);
    let call = flux::AgGemmCall {
        m: 4,
        a: buffer.address(),
        b: matrix,
        scales: flux::Scales::NONE,
        bias: None,
        c: matrix,
    };
    // SAFETY: every call is refused before anything is enqueued, but for one, which the buffer outlives.
    let enqueue = |rank, call: flux::AgGemmCall| unsafe { op.enqueue(rank, &call, &stream) };
    assert!(matches!(enqueue(2, call), Err(Error::NoSuchRank { rank: 2, world_size: 2 })));
    assert!(matches!(
        enqueue(0, flux::AgGemmCall { m: 17, ..call }),
        Err(Error::TooManyRows { m: 17, max_m: 16 })
    ));
    let null = flux::AgGemmCall { a: flux::Address::NULL, ..call };
    assert!(matches!(enqueue(0, null), Err(Error::BadMatrix { name: "A", .. })));
    let narrow = flux::AgGemmCall { b: flux::Matrix::contiguous(buffer.address(), 3), ..call };
    assert!(matches!(enqueue(0, narrow), Err(Error::BadMatrix { name: "B", .. })));
    let both = |second: flux::AgGemmCall| {
        let other = group.stream(1).unwrap();
        // SAFETY: refused before anything is enqueued.
        unsafe { op.enqueue_all(&[flux::AgGemmCall { m: 9, ..call }, second], &[&stream, &other]) }
    };
    assert!(matches!(both(call), Err(Error::DifferentRows { rank: 1, m: 4, other: 9 })));
    assert!(matches!(both(flux::AgGemmCall { m: 9, ..null }), Err(Error::BadMatrix { .. })));
    // SAFETY: as above.
    let one = unsafe { op.enqueue_all(&[call], &[&stream]) };
    assert!(matches!(one, Err(Error::NotOnePerRank { what: "calls", given: 1, world_size: 2 })));
    enqueue(0, call).unwrap(); // the refused calls left no trace
    assert!(matches!(enqueue(1, flux::AgGemmCall { m: 5, ..call }), Err(Error::DifferentRows { .. })));
    let mut spec = OpSpec::new(8, 8, 16, DType::Bf16);
    spec.chunk_rows = Some(0);
    assert!(matches!(AgGemm::new(&group, spec), Err(Error::Transport(_))));
    let largest = i32::MAX as usize - 255;
    for (n, k) in [(8, largest), (largest, 8), (largest, largest)] {
        let spec = || OpSpec::new(n, k, largest, DType::Bf16);
        for error in [
            AgGemm::new(&group, spec()).map(drop),
            GemmRs::new(&group, spec()).map(drop),
            GemmAr::new(&group, spec()).map(drop),
        ] {
            let text = error.unwrap_err().to_string();
            assert!(text.contains("out of memory") || text.contains("65,536"), "{text}");
        }
    }
    assert!(matches!(
        AgGemm::new(&group, OpSpec::new(8, 8, usize::MAX, DType::Bf16)),
        Err(Error::Launch(flux_launch::Error::TooLarge { .. }))
    ));
    // Rank 1 never made its call: the wait for its rows ends.
    stream.synchronize().unwrap();
    assert!(matches!(group.check(), Err(Error::WaitExpired { rank: 0, peer: 1, .. })));
}

/// Two threads call the same rank: their calls come one after the other, each whole.
#[test]
fn threads_that_call_the_same_rank_take_turns() {
    let group = group(2);
    let (m, n, k) = (64, 32, 16);
    let op = AgGemm::new(&group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let reference = product(&a, &b, m, n, k);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
                    whole.enqueue().unwrap();
                    let c = whole.result().unwrap();
                    assert!(c.iter().zip(&reference).all(|(c, r)| f64::from(*c) == *r));
                }
            });
        }
    });
}

/// Every call on other streams, one rank and several: what a call uses is there, and stays while it runs.
#[test]
fn calls_may_come_on_other_streams() {
    for world_size in [1, 3] {
        let group = group(world_size);
        let (max_m, n, k) = (200, 64, 32);
        let op = GemmRs::new(&group, OpSpec::new(n, k, max_m, DType::Bf16)).unwrap();
        let (a, b) = (matrix::<bf16>(max_m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        // More numbers of rows than an operation remembers, each twice, all in flight at once.
        let rows: Vec<_> = (1..=12).flat_map(|step| [step * 16, step * 16]).collect();
        let calls: Vec<_> =
            rows.iter().map(|&m| Whole::place(&group, &op, &a[..m * k], &b, m).unwrap()).collect();
        for call in &calls {
            call.enqueue().unwrap();
        }
        for (call, m) in calls.iter().zip(rows) {
            let reference = product(&a[..m * k], &b, m, n, k);
            assert!(
                call.result().unwrap().iter().zip(&reference).all(|(c, r)| f64::from(*c) == *r),
                "m = {m}"
            );
        }
    }
}

/// Every way, calls with many numbers of rows all in flight at once: no call touches what another one still reads. `Auto`
/// takes turns between relayed and unfused calls. The larger shards are several chunks.
#[test]
fn calls_in_flight_keep_apart_in_every_way() {
    let group = group(3);
    for (path, delivery, max_m) in [
        (PathPreference::Fused, Delivery::Direct, 200),
        (PathPreference::Fused, Delivery::Relayed, 200),
        (PathPreference::Fused, Delivery::Relayed, 2000),
        (PathPreference::Auto, Delivery::Relayed, 2000),
        (PathPreference::Unfused, Delivery::Auto, 200),
        (PathPreference::Chunked, Delivery::Auto, 200),
    ] {
        for direction in [Direction::Push, Direction::Pull] {
            let mut spec = OpSpec::new(70, 30, max_m, DType::Bf16);
            (spec.path, spec.direction, spec.one_shot_rows) = (path, Some(direction), Some(70));
            (spec.delivery, spec.chunk_rows) = (delivery, Some(100));
            check_in_flight(&group, &AgGemm::new(&group, spec.clone()).unwrap());
            check_in_flight(&group, &GemmRs::new(&group, spec.clone()).unwrap());
            check_in_flight(&group, &GemmAr::new(&group, spec).unwrap());
        }
    }
}

fn check_in_flight<Op: Operation>(group: &Group, op: &Op) {
    let OpSpec { n, k, max_m, path, delivery, direction, .. } = *op.spec();
    let (a, b) = (matrix::<bf16>(max_m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let rows = [200, 7, 150, 100, 0, 1, 64, 199, 3, 120, 99, 200, 200, 1].map(|m| m * max_m / 200);
    let calls = rows.map(|m| Whole::place(group, op, &a[..m * k], &b, m).unwrap());
    for call in &calls {
        call.enqueue().unwrap();
    }
    let name = std::any::type_name::<Op>();
    for (call, m) in calls.iter().zip(rows) {
        let reference = product(&a[..m * k], &b, m, n, k);
        let c = call.result().unwrap();
        let right = c.iter().zip(&reference).all(|(c, r)| f64::from(*c) == *r);
        assert!(right, "{name}, {path:?}, {delivery}, {direction:?}, m = {m} of {max_m}");
    }
}

/// The communication without the GEMM ends, call after call, and is said to be that.
#[test]
fn communication_alone_ends() {
    let group = group(3);
    let (m, n, k) = (100, 70, 30);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    for direction in [Direction::Push, Direction::Pull] {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.direction) = (PathPreference::CommunicationOnly, Some(direction));
        let gather = AgGemm::new(&group, spec.clone()).unwrap();
        let scatter = GemmRs::new(&group, spec.clone()).unwrap();
        let reduce = [m, 0].map(|rows| {
            spec.one_shot_rows = Some(rows);
            GemmAr::new(&group, spec.clone()).unwrap()
        });
        for _ in 0..3 {
            let choices = [
                run::ag_gemm(&group, &gather, m, &a, &b).unwrap().choice,
                run::gemm_rs(&group, &scatter, m, &a, &b).unwrap().choice,
                run::gemm_ar(&group, &reduce[0], m, &a, &b).unwrap().choice,
                run::gemm_ar(&group, &reduce[1], m, &a, &b).unwrap().choice,
            ];
            assert!(choices.iter().all(|choice| choice.path == Path::CommunicationOnly), "{choices:?}");
        }
        check_gathered(&group, &gather, &a);
    }
}

#[test]
fn a_gathered_matrix_that_is_kept_is_whole() {
    let (group, m, n, k) = (group(3), 100, 24, 40);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for path in [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked] {
        for direction in [Direction::Push, Direction::Pull] {
            let mut spec = OpSpec::new(n, k, m, DType::Bf16);
            (spec.path, spec.direction, spec.keep_gathered) = (path, Some(direction), true);
            let gather = AgGemm::new(&group, spec).unwrap();
            run::ag_gemm(&group, &gather, m, &a, &b).unwrap();
            check_gathered(&group, &gather, &a);
        }
    }
}

/// Every rank has all rows of A.
fn check_gathered(group: &Group, gather: &AgGemm, a: &[bf16]) {
    for rank in group.local_ranks() {
        let stream = group.stream(rank).unwrap();
        let mut gathered = vec![bf16::NAN; a.len()];
        // SAFETY: the operation's own rows; nothing is in flight.
        unsafe {
            stream.download(bytemuck::cast_slice_mut(&mut gathered), gather.gathered(rank)).unwrap();
        }
        assert_eq!(gathered, a, "rank {rank}, {:?}", gather.spec());
    }
}

/// One operation's output is the next one's input, on the device, with nothing in between.
#[test]
fn an_operation_follows_another() {
    let group = group(3);
    let (m, hidden, inner) = (100, 24, 40);
    let gather = AgGemm::new(&group, OpSpec::new(inner, hidden, m, DType::Bf16)).unwrap();
    let scatter = GemmRs::new(&group, OpSpec::new(hidden, inner, m, DType::Bf16)).unwrap();
    let (x, up) = (matrix::<bf16>(m * hidden, Fill::Integers, 1), matrix(inner * hidden, Fill::Integers, 2));
    let down = matrix::<bf16>(hidden * inner, Fill::Integers, 3);
    let first = Whole::place(&group, &gather, &x, &up, m).unwrap();
    let second = Whole::after(&group, &scatter, &first, &down).unwrap();
    for _ in 0..20 {
        first.enqueue().unwrap();
        second.enqueue().unwrap();
    }
    let between = first.result().unwrap();
    let error = relative_error(&second.result().unwrap(), &product(&between, &down, m, hidden, inner));
    assert!(error < 4e-3, "{error:e}");
    assert!(matches!(Whole::after(&group, &gather, &first, &up).map(drop), Err(Error::BadMatrix { .. })));
}

/// Dropping with work in flight waits for it, in whatever order things are dropped.
#[test]
fn dropping_waits_for_what_is_in_flight() {
    let (m, n, k) = (150, 70, 30);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    for round in 0..30 {
        let group = group(4);
        let gather = AgGemm::new(&group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.delivery) = (PathPreference::Fused, Delivery::Relayed);
        let scatter = GemmRs::new(&group, spec.clone()).unwrap();
        spec.one_shot_rows = Some(if round % 3 == 0 { m } else { 0 });
        let reduce = GemmAr::new(&group, spec).unwrap();
        let calls = (
            Whole::place(&group, &gather, &a, &b, m).unwrap(),
            Whole::place(&group, &scatter, &a, &b, m).unwrap(),
            Whole::place(&group, &reduce, &a, &b, m).unwrap(),
        );
        calls.0.enqueue().unwrap();
        calls.1.enqueue().unwrap();
        calls.2.enqueue().unwrap();
        if round % 2 == 0 {
            drop(group);
        }
    }
}

/// Two operations of one group in flight on streams of their own: a rank's calls run in the order of their enqueueing, so
/// that no two wait for peers at the same time, each holding what the other's peers need.
#[test]
fn operations_in_flight_at_once_make_progress() {
    let group = group(4);
    let (m, n, k) = (256, 128, 64);
    let mut spec = OpSpec::new(n, k, m, DType::Bf16);
    spec.path = PathPreference::Fused;
    let first = GemmRs::new(&group, spec.clone()).unwrap();
    spec.delivery = Delivery::Relayed;
    let second = GemmRs::new(&group, spec).unwrap();
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let calls = [&first, &second].map(|op| Whole::place(&group, op, &a, &b, m).unwrap());
    std::thread::scope(|scope| {
        for call in &calls {
            scope.spawn(move || {
                (0..100).for_each(|_| {
                    call.enqueue().unwrap();
                })
            });
        }
    });
    let reference = product(&a, &b, m, n, k);
    for call in &calls {
        assert!(call.result().unwrap().iter().zip(&reference).all(|(c, r)| f64::from(*c) == *r));
    }
}
