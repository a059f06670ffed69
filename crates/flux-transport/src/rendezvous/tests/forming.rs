use super::super::handshake::JoinFailure;
use super::super::join::attempt;
use super::*;
use flux_memory::Bootstrap;
use std::io::Write;

#[test]
fn groups_of_many_sizes_form_in_any_order() {
    for world_size in [1, 2, 3, 4, 8] {
        let port = reserve_port();
        std::thread::scope(|scope| {
            // Rank 0 is the last to start.
            for rank in (0..world_size).rev() {
                if rank == 0 && world_size > 1 {
                    std::thread::sleep(Duration::from_millis(30));
                }
                scope.spawn(move || {
                    let group = form(&spec(rank, world_size, port)).unwrap();
                    assert_eq!((group.rank(), group.world_size()), (rank, world_size));
                    group.barrier().unwrap();
                });
            }
        });
    }
}

#[test]
fn addresses_may_be_names_and_ipv6() {
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    for host in ["localhost", "127.0.0.1", "::1", "[::1]"] {
        if host.contains(':') && !has_ipv6 {
            continue;
        }
        // This is about rank 0's own way to listen. The port is free, unless somebody gets it in this moment.
        let formed = (0..3).any(|_| {
            let port = reserve_port();
            RESERVED.lock().unwrap().remove(&port);
            std::thread::scope(|scope| {
                let form = |rank| {
                    let mut spec = spec(rank, 2, port);
                    (spec.host, spec.forming_timeout) = (host.into(), Duration::from_secs(10));
                    scope.spawn(move || {
                        TcpBootstrap::form(&spec).and_then(|group| own(group.barrier())).is_ok()
                    })
                };
                [form(0), form(1)].into_iter().all(|rank| rank.join().unwrap())
            })
        });
        assert!(formed, "{host}");
    }
}

/// At a name's first addresses there may be nobody, or somebody else: who closes at once, is silent, or speaks of other things.
#[test]
fn of_several_addresses_the_one_with_rank_0_is_found() {
    let port = reserve_port();
    let strangers: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let at = |listener: &TcpListener| listener.local_addr().unwrap();
    let nobody = at(&TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses =
        [vec![nobody], strangers.iter().map(at).collect(), vec![([127, 0, 0, 1], port).into()]].concat();
    std::thread::scope(|scope| {
        let root = scope.spawn(move || form(&spec(0, 2, port)).unwrap());
        let [closing, speaking, _silent] = &strangers[..] else { panic!() };
        scope.spawn(move || drop(closing.accept().unwrap()));
        scope.spawn(move || speaking.accept().unwrap().0.write_all(&[b'x'; 64]).unwrap());
        let mut spec = spec(1, 2, port);
        spec.handshake_timeout = Duration::from_millis(100);
        let deadline = Instant::now() + Duration::from_secs(20);
        let stream = attempt(&spec, &addresses, deadline).unwrap();
        assert_eq!(stream.peer_addr().unwrap().port(), port);
        drop((root.join().unwrap(), stream));
    });
    // With no rank 0 anywhere, what speaks of other things is what there is to say.
    std::thread::scope(|scope| {
        let [speaking, closing, _silent] = &strangers[..] else { panic!() };
        scope.spawn(move || speaking.accept().unwrap().0.write_all(&[b'x'; 64]).unwrap());
        scope.spawn(move || drop(closing.accept().unwrap()));
        let failure = attempt(&spec(1, 2, port), &addresses[..3], Instant::now() + Duration::from_secs(20));
        assert!(matches!(failure, Err(JoinFailure::Stranger(_))), "{failure:?}");
    });
}

#[test]
fn a_name_that_is_none_is_an_error_on_every_rank() {
    for rank in 0..2 {
        let mut spec = spec(rank, 2, reserve_port());
        spec.host = "no such host".into();
        spec.forming_timeout = Duration::from_millis(100);
        let error = form(&spec).unwrap_err().to_string();
        assert!(error.contains("no such host") && !error.contains("does not answer"), "{error}");
    }
}

#[test]
fn missing_ranks_are_named_and_those_that_came_are_told() {
    let port = reserve_port();
    std::thread::scope(|scope| {
        let root = scope.spawn(move || {
            let mut spec = spec(0, 4, port);
            spec.forming_timeout = Duration::from_millis(1500);
            form(&spec).unwrap_err()
        });
        // It waits no longer than rank 0, and may have begun before.
        let joined = scope.spawn(move || {
            let mut spec = spec(2, 4, port);
            spec.forming_timeout = Duration::from_millis(1400);
            form(&spec).unwrap_err()
        });
        let RendezvousError::RanksMissing { missing, .. } = root.join().unwrap() else { panic!() };
        assert_eq!(missing, [1, 3]);
        let RendezvousError::Refused { rank: 2, reason, .. } = joined.join().unwrap() else { panic!() };
        assert!(reason.contains("ranks 1, 3 of 4 did not come"), "{reason}");
    });
}

#[test]
fn who_was_refused_meanwhile_is_told_with_who_is_missing() {
    let port = reserve_port();
    std::thread::scope(|scope| {
        let root = scope.spawn(move || {
            let mut spec = spec(0, 2, port);
            spec.forming_timeout = Duration::from_millis(1500);
            form(&spec).unwrap_err().to_string()
        });
        let refused = form(&spec(1, 3, port)).unwrap_err();
        assert!(matches!(refused, RendezvousError::Refused { rank: 1, .. }), "{refused}");
        let error = root.join().unwrap();
        assert!(error.contains("ranks 1 of 2") && error.contains("its world size is 3"), "{error}");
    });
}

#[test]
fn without_rank_0_the_others_give_up_in_time() {
    let mut spec = spec(1, 2, reserve_port());
    spec.forming_timeout = Duration::from_millis(200);
    let begin = Instant::now();
    let error = form(&spec).unwrap_err();
    assert!(matches!(error, RendezvousError::NoRankZero { rank: 1, .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut spec = spec(0, 2, taken.local_addr().unwrap().port());
    spec.forming_timeout = Duration::from_millis(200);
    let error = form(&spec).unwrap_err();
    assert!(matches!(error, RendezvousError::CannotListen { .. }), "{error}");
}

#[test]
fn specs_that_make_no_sense_are_refused() {
    type Change = fn(&mut RendezvousSpec);
    let cases: [(&str, Change); 9] = [
        ("world of 0", |spec| spec.world_size = 0),
        ("world of 1000000", |spec| spec.world_size = 1_000_000),
        ("no rank 2", |spec| spec.rank = 2),
        ("port 0", |spec| spec.port = 0),
        ("no token", |spec| spec.token.clear()),
        ("no host", |spec| spec.host = String::new()),
        ("build is too long", |spec| spec.build = "b".repeat(1000)),
        ("forming_timeout", |spec| spec.forming_timeout = Duration::ZERO),
        ("two heartbeats", |spec| spec.silence = spec.heartbeat),
    ];
    for (expected, change) in cases {
        let mut spec = spec(0, 2, 29_500);
        change(&mut spec);
        let error = form(&spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn the_token_is_not_printed() {
    let shown = format!("{:?}", spec(0, 2, 29_500));
    assert!(!shown.contains("a token of") && !shown.contains("97, 32"), "{shown}");
}
