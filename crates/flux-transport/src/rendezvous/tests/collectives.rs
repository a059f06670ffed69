use super::*;
use flux_memory::Bootstrap;

/// Rank `rank`'s part of round `round`: of a length of its own.
fn part(rank: usize, round: usize) -> Vec<u8> {
    (0..(rank * 37 + round * 11) % 90).map(|i| u8::try_from((i + rank + round) % 256).unwrap()).collect()
}

#[test]
fn everybody_gets_everything_in_rank_order() {
    for world_size in [1, 2, 3, 4, 8] {
        on_all_ranks(
            world_size,
            |_| (),
            |group| {
                for round in 0..20 {
                    let gathered = group.all_gather(&part(group.rank(), round)).unwrap();
                    let expected: Vec<_> = (0..world_size).map(|rank| part(rank, round)).collect();
                    assert_eq!(gathered, expected);
                    group.barrier().unwrap();
                }
                assert_eq!(group.lost_rank(), None);
            },
        );
    }
}

#[test]
fn as_much_as_is_allowed_may_be_gathered_and_no_more() {
    on_all_ranks(
        3,
        |_| (),
        |group| {
            let most = vec![u8::try_from(group.rank()).unwrap(); 1 << 20];
            let error = own_words(group.all_gather(&vec![0; most.len() + 1]).unwrap_err());
            assert_eq!(error, RendezvousError::TooLarge { bytes: most.len() + 1, limit: most.len() });
            let gathered = group.all_gather(&most).unwrap();
            assert!(
                gathered
                    .iter()
                    .zip(0..)
                    .all(|(part, rank): (_, u8)| part.len() == most.len() && part[0] == rank)
            );
        },
    );
}

#[test]
fn a_barrier_lets_nobody_through_before_all_have_come() {
    let come = std::sync::atomic::AtomicUsize::new(0);
    on_all_ranks(
        4,
        |_| (),
        |group| {
            std::thread::sleep(Duration::from_millis(10 * group.rank() as u64));
            come.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            group.barrier().unwrap();
            assert_eq!(come.load(std::sync::atomic::Ordering::SeqCst), 4);
        },
    );
}

#[test]
fn ranks_out_of_step_get_an_error_and_not_each_others_data() {
    for odd in 0..3 {
        let errors = on_all_ranks(
            3,
            |_| (),
            |group| {
                group.barrier().unwrap();
                let failed = if group.rank() == odd {
                    group.barrier().unwrap_err()
                } else {
                    group.all_gather(b"data").map(drop).unwrap_err()
                };
                // It stays so: whatever comes next could meet another rank's call before.
                let again = own_words(group.barrier().unwrap_err());
                let failed = own_words(failed);
                assert_eq!(again, failed);
                (group, failed)
            },
        );
        for (group, error) in &errors {
            let RendezvousError::OutOfStep { rank, theirs, ours } = error else { panic!("{error}") };
            assert!(if odd == 0 { *rank > 0 } else { *rank == odd }, "{error}");
            assert!(theirs.contains("call 2") && ours.contains("call 2"), "{error}");
            assert_eq!(group.lost_rank(), None);
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all() {
    for late in 0..3 {
        let errors = on_all_ranks(
            3,
            |spec| spec.collective_timeout = Duration::from_millis(300),
            |group| {
                if group.rank() == late {
                    // It comes when the call has failed, and learns that.
                    let failed = || group.channel.state().failure.clone();
                    eventually(failed);
                }
                (own_words(group.barrier().unwrap_err()), group)
            },
        );
        for (error, _) in errors {
            assert_eq!(error, RendezvousError::Late { missing: vec![late], call: 1 });
        }
    }
}
