use super::*;
use flux_memory::Bootstrap;
use std::sync::Barrier;

/// Ends as a process does that is killed: its sockets close, and nothing is said.
fn crash(group: TcpBootstrap) {
    group.channel.leave(false);
}

#[test]
fn all_survivors_name_the_rank_that_is_lost() {
    for (world_size, victim) in [(2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (8, 5)] {
        let ready = Barrier::new(world_size);
        let checked = Barrier::new(world_size - 1);
        on_all_ranks(
            world_size,
            |_| (),
            |group| {
                group.barrier().unwrap();
                ready.wait();
                if group.rank() == victim {
                    return crash(group);
                }
                // Half of them wait in a call, half look now and then.
                if group.rank() % 2 == 0 {
                    let begin = Instant::now();
                    let error = own_words(group.barrier().unwrap_err());
                    assert_eq!(error, RendezvousError::Lost { rank: victim });
                    assert!(begin.elapsed() < group.channel.silence, "it was noticed by silence only");
                }
                assert_eq!(eventually(|| group.lost_rank()), victim);
                let error = own_words(group.all_gather(b"data").unwrap_err());
                assert_eq!(error, RendezvousError::Lost { rank: victim });
                checked.wait();
            },
        );
    }
}

#[test]
fn whoever_ends_because_of_a_loss_is_not_taken_for_it() {
    // Each survivor crashes, too, as soon as it knows.
    for victim in 0..4 {
        let ready = Barrier::new(4);
        on_all_ranks(
            4,
            |_| (),
            |group| {
                ready.wait();
                if group.rank() != victim {
                    let lost = eventually(|| group.lost_rank());
                    assert_eq!(lost, victim);
                }
                crash(group);
            },
        );
    }
}

/// Those who are told first leave, in good order, while rank 0 still tells the others: that is not what it takes for the reason.
#[test]
fn whoever_leaves_because_of_a_loss_is_not_taken_for_the_reason() {
    for victim in (1..8).cycle().take(30) {
        on_all_ranks(
            8,
            |_| (),
            |group| {
                group.barrier().unwrap();
                match group.rank() {
                    0 => assert_eq!(
                        own_words(group.barrier().unwrap_err()),
                        RendezvousError::Lost { rank: victim }
                    ),
                    rank if rank == victim => crash(group),
                    _ => assert_eq!(eventually(|| group.lost_rank()), victim),
                }
            },
        );
    }
}

#[test]
fn leaving_in_good_order_is_no_loss() {
    for leaver in 0..3 {
        let (gone, checked) = (Barrier::new(3), Barrier::new(2));
        on_all_ranks(
            3,
            |_| (),
            |group| {
                group.barrier().unwrap();
                if group.rank() == leaver {
                    drop(group);
                    gone.wait();
                    return;
                }
                gone.wait();
                let error = own_words(group.barrier().unwrap_err());
                assert_eq!(error, RendezvousError::Left { rank: leaver });
                assert_eq!(group.lost_rank(), None);
                checked.wait();
            },
        );
    }
}

#[test]
fn the_last_call_of_those_who_leave_at_once_succeeds_everywhere() {
    for round in 0..30 {
        on_all_ranks(
            4,
            |_| (),
            |group| {
                if round % 4 == group.rank() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                group.barrier().unwrap();
            },
        );
    }
}

#[test]
fn dropping_a_group_takes_no_long_time() {
    let begin = Instant::now();
    on_all_ranks(8, |_| (), |group| group.barrier().unwrap());
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn unwinding_from_a_panic_is_a_loss() {
    on_all_ranks(
        2,
        |_| (),
        |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _group = group;
                    std::panic::resume_unwind(Box::new("on purpose"));
                }));
                assert!(unwound.is_err());
            } else {
                assert_eq!(eventually(|| group.lost_rank()), 1);
            }
        },
    );
}

#[test]
fn silence_is_a_loss_in_bounded_time() {
    // Rank 1 says nothing and closes nothing, as if its host were gone.
    let done = Barrier::new(3);
    on_all_ranks(
        3,
        |spec| {
            spec.silence = Duration::from_millis(1500);
            spec.heartbeat = Duration::from_millis(100);
        },
        |group| {
            if group.rank() == 1 {
                // Its threads end, its socket stays open.
                let open = group.channel.peers[0].as_ref().unwrap().stream.try_clone().unwrap();
                group.channel.state().leaving = true;
                group.channel.changed.notify_all();
                done.wait();
                drop(open);
                return;
            }
            assert_eq!(eventually(|| group.lost_rank()), 1);
            done.wait();
        },
    );
}

#[test]
fn heartbeats_keep_a_quiet_group_alive() {
    on_all_ranks(
        3,
        |spec| {
            spec.silence = Duration::from_millis(2000);
            spec.heartbeat = Duration::from_millis(50);
        },
        |group| {
            std::thread::sleep(Duration::from_millis(2500));
            assert_eq!(group.lost_rank(), None);
            group.barrier().unwrap();
        },
    );
}
