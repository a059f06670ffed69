//! Groups of one rank per process on the host backend: first with threads in the processes' place, which share nothing but a
//! channel and the memory that they hand each other.

use flux::{
    AgGemm, BackendChoice, DType, Direction, Error, GemmAr, GemmRs, Group, GroupConfig, OpSpec,
    PathPreference, Placement, Whole,
};
use flux_memory::{Device, Peers, Sharing, SymmetricBuffer, SymmetricSpace};
use flux_tests::data::{Fill, matrix, product};
use flux_tests::meeting::{in_group, on_threads};
use flux_tests::table::{Case, check};
use half::bf16;
use std::time::{Duration, Instant};

fn config() -> GroupConfig {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Host;
    config
}

/// Once for each world size, every operation in every way.
#[test]
fn every_way_is_right() {
    for world_size in [1, 2, 3, 4] {
        on_threads(world_size, |end| {
            let group = Group::with_bootstrap(end, config()).unwrap();
            check(Case { m: 67, n: 40, k: 24, world_size }, &|_| group.clone());
        });
    }
}

#[test]
fn ranks_that_are_configured_differently_all_get_an_error() {
    let errors = on_threads(3, |end| {
        let mut config = config();
        if flux::Bootstrap::rank(&*end) == 1 {
            config.peer_memory = Placement::PinnedHost;
        }
        Group::with_bootstrap(end, config).unwrap_err()
    });
    for (rank, error) in errors.iter().enumerate() {
        let other = if rank == 1 { 0 } else { 1 };
        assert!(matches!(error, Error::Disagreement { rank, .. } if *rank == other), "{error}");
        assert!(error.to_string().contains("peer memory"), "{error}");
    }
}

/// What the host does not have is refused on all ranks.
#[test]
fn the_host_has_no_fabric_handles() {
    let errors = on_threads(2, |end| {
        let mut config = config();
        config.sharing = Sharing::Fabric;
        Group::with_bootstrap(end, config).unwrap_err().to_string()
    });
    for error in errors {
        assert!(
            error.contains("rank 0 cannot share memory by fabric handles: it runs on the host"),
            "{error}"
        );
    }
}

/// An operation is built on all ranks or on none.
#[test]
fn what_one_rank_cannot_build_none_has() {
    in_group(3, &config(), |group| {
        let rank = group.local_ranks().start;
        // Ranks that build different things are told so, each of them.
        let n = if rank == 2 { 9 } else { 8 };
        let error = AgGemm::new(group, OpSpec::new(n, 8, 16, DType::Bf16)).unwrap_err();
        assert!(error.to_string().contains("all ranks must build the same operations"), "{error}");
        // Far more than any machine has.
        let largest = i32::MAX as usize - 255;
        let huge = OpSpec::new(8, largest, largest, DType::Bf16);
        let error = AgGemm::new(group, huge).unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{error}");
        // The group is as usable as before.
        right(group, 2);
    });
}

/// Builds operations, calls them `calls` times, and compares.
fn right(group: &Group, calls: usize) {
    let (m, n, k) = (50, 24, 16);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let reference = product(&a, &b, m, n, k);
    for direction in [Direction::Push, Direction::Pull] {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.direction) = (PathPreference::Fused, Some(direction));
        let op = GemmRs::new(group, spec).unwrap();
        let whole = Whole::place(group, &op, &a, &b, m).unwrap();
        for _ in 0..calls {
            whole.enqueue().unwrap();
        }
        assert!(whole.result().unwrap().iter().zip(&reference).all(|(c, r)| f64::from(*c) == *r));
    }
}

/// Ranks that make different calls are told so, or their waits end.
#[test]
fn ranks_that_disagree_about_a_call_are_told() {
    let mut config = config();
    config.wait_budget = Duration::from_millis(300);
    let errors = in_group(2, &config, |group| {
        let rank = group.local_ranks().start;
        let (n, k, m) = (8, 8, 16 + rank);
        let op = GemmAr::new(group, OpSpec::new(n, k, 32, DType::Bf16)).unwrap();
        let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        let whole = Whole::place(group, &op, &a, &b, m).unwrap();
        whole.enqueue().and_then(|_| whole.synchronize())
    });
    let different = errors.iter().filter(|error| matches!(error, Err(Error::DifferentRows { .. }))).count();
    assert!(different > 0 && errors.iter().all(Result::is_err), "{errors:?}");
}

#[test]
fn a_rank_of_another_process_cannot_be_called() {
    in_group(2, &config(), |group| {
        let (here, other) = (group.local_ranks().start, 1 - group.local_ranks().start);
        assert!(
            matches!(group.stream(other), Err(Error::NotHere { rank, here: own }) if rank == other && own == here)
        );
        assert!(matches!(group.device(2), Err(Error::NoSuchRank { rank: 2, world_size: 2 })));
    });
}

/// A wait in progress ends when a peer is lost, long before its budget does, and the error names that peer.
#[test]
fn a_lost_rank_ends_all_waits() {
    let mut config = config();
    config.wait_budget = Duration::from_secs(60);
    on_threads(3, |end| {
        let group = Group::with_bootstrap(end.clone(), config.clone()).unwrap();
        let rank = group.local_ranks().start;
        let (m, n, k) = (30, 8, 8);
        let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
        let op = AgGemm::new(&group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
        let whole = Whole::place(&group, &op, &a, &b, m).unwrap();
        let begin = Instant::now();
        if rank == 2 {
            std::thread::sleep(Duration::from_millis(100)); // the others wait for its call, which never comes
            end.lose(2);
        } else {
            whole.enqueue().unwrap();
        }
        let error = if rank == 2 { None } else { Some(whole.synchronize().unwrap_err()) };
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        if let Some(error) = error {
            assert!(matches!(error, Error::RankLost { lost: 2, .. }), "{error}");
            assert!(error.to_string().contains("rank 2 is lost"), "{error}");
        }
    });
}

/// What a rank writes into its memory, all others read, wherever it lies for them.
#[test]
fn memory_is_the_same_for_all_ranks() {
    on_threads(4, |end| {
        let rank = flux::Bootstrap::rank(&*end);
        let mark = |rank: usize| u8::try_from(rank).unwrap() + 1;
        let peers = Peers::connect(end).unwrap();
        let space = SymmetricSpace::among(&peers, &Device::host(), Sharing::Auto).unwrap();
        for (bytes, placement) in
            [(0, Placement::Device), (10, Placement::PinnedHost), (100_000, Placement::Device)]
        {
            let buffer = SymmetricBuffer::allocate(&space, bytes, placement).unwrap();
            assert!(buffer.address(4).is_null() && buffer.bytes() == bytes);
            let at = |of: usize, index: usize| buffer.address(of).add(index).as_ptr::<u8>();
            // SAFETY: inside of the buffers; the steps keep writers and readers apart.
            unsafe {
                (0..bytes).for_each(|index| at(rank, index).write_volatile(mark(rank)));
                peers.exchange("write", Ok(Vec::new())).unwrap();
                for of in 0..4 {
                    assert!((0..bytes).all(|index| at(of, index).read_volatile() == mark(of)));
                }
                peers.exchange("read", Ok(Vec::new())).unwrap();
            }
            if rank != 0 {
                continue; // the others' memory goes, this rank's view of it stays
            }
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: as above; mapped by this rank.
            assert!((0..bytes).all(|index| unsafe { at(1, index).read_volatile() } == 2));
        }
        // One rank asks for too much, or for something else: nobody gets anything, and everybody goes on.
        let bytes = if rank == 1 { 2000 } else { 1000 };
        let error = SymmetricBuffer::allocate(&space, bytes, Placement::Device).unwrap_err().to_string();
        assert!(error.contains("is about to allocate"), "{error}");
        let huge = SymmetricBuffer::allocate(&space, usize::MAX, Placement::Device).unwrap_err();
        assert!(matches!(huge, flux_memory::Error::OutOfMemory { .. }), "{huge}");
        let failed = peers.share("try", if rank == 2 { Err(huge) } else { Ok(()) }).unwrap_err();
        match (rank, &failed) {
            (2, flux_memory::Error::OutOfMemory { .. }) => {}
            (_, flux_memory::Error::PeerFailed { rank: 2, .. }) => {}
            _ => panic!("rank {rank}: {failed}"),
        }
        SymmetricBuffer::allocate(&space, 1, Placement::Device).unwrap();
    });
}
