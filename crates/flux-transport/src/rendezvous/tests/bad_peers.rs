//! What a bad peer can do, and that it does not keep good ones from forming a group.

use super::*;
use flux_memory::Bootstrap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Connects as soon as rank 0 listens.
fn connect(port: u16) -> TcpStream {
    eventually(|| TcpStream::connect(("127.0.0.1", port)).ok())
}

/// Reads until the other side closes.
fn closed(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut read = Vec::new();
    // A reset is a way to close, too.
    match stream.read_to_end(&mut read) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("not closed: {error}"),
        _ => read,
    }
}

/// Rank 0 and rank 1 of 3 are there; `misbehave`, given the port, ends; then rank 2 comes, and the group must form.
fn with_a_bad_peer(misbehave: impl FnOnce(u16)) {
    let port = reserve_port();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || form(&spec(rank, 3, port)).unwrap().barrier().unwrap());
        }
        misbehave(port);
        let begin = Instant::now();
        let group = form(&spec(2, 3, port)).unwrap();
        // Well below what rank 0 allows a silent peer: none has been waited for.
        assert!(begin.elapsed() < group.channel.silence / 3, "good ranks were held up");
        group.barrier().unwrap();
    });
}

/// A good rank in all but one thing, and what it is told.
fn refused(change: impl FnOnce(&mut RendezvousSpec)) -> String {
    let mut told = String::new();
    with_a_bad_peer(|port| {
        let mut spec = spec(2, 3, port);
        change(&mut spec);
        let error = form(&spec).unwrap_err();
        assert!(matches!(error, RendezvousError::Refused { .. }), "{error}");
        told = error.to_string();
    });
    told
}

#[test]
fn garbage_is_refused() {
    with_a_bad_peer(|port| {
        for garbage in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 64], &[0xff; 4096]] {
            let mut stream = connect(port);
            // Rank 0 may have closed before all is written.
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            closed(stream);
        }
    });
}

#[test]
fn a_wrong_token_is_refused() {
    let told = refused(|spec| spec.token = b"another".to_vec());
    assert!(told.contains("token is wrong"), "{told}");
}

#[test]
fn a_wrong_world_size_is_refused() {
    let told = refused(|spec| spec.world_size = 4);
    assert!(told.contains("its world size is 4, rank 0's is 3"), "{told}");
}

#[test]
fn another_build_is_refused() {
    let told = refused(|spec| spec.build = "of yesterday".into());
    assert!(told.contains("of yesterday"), "{told}");
}

#[test]
fn a_rank_out_of_range_is_refused() {
    // Its own check would not let it get that far.
    with_a_bad_peer(|port| {
        let stream = connect(port);
        let terms = spec(2, 3, port).terms();
        let deadline = Instant::now() + Duration::from_secs(20);
        super::super::handshake::introduce(&stream, &terms, 3, deadline).unwrap();
        let told = String::from_utf8_lossy(&closed(stream)).into_owned();
        assert!(told.contains("no rank 3 in a world of 3"), "{told}");
    });
}

#[test]
fn a_second_rank_0_and_a_second_rank_1_are_refused() {
    with_a_bad_peer(|port| {
        let stream = connect(port);
        let terms = spec(2, 3, port).terms();
        let deadline = Instant::now() + Duration::from_secs(20);
        super::super::handshake::introduce(&stream, &terms, 0, deadline).unwrap();
        let told = String::from_utf8_lossy(&closed(stream)).into_owned();
        assert!(told.contains("there is a rank 0 already"), "{told}");
    });
    // Two processes are rank 1: one of them, whichever came first, belongs to the group, and the other is told.
    let port = reserve_port();
    std::thread::scope(|scope| {
        let root = scope.spawn(move || form(&spec(0, 3, port)).unwrap());
        let (outcome, outcomes) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let outcome = outcome.clone();
            scope.spawn(move || outcome.send(form(&spec(1, 3, port))).unwrap());
        }
        let error = outcomes.recv().unwrap().unwrap_err();
        assert!(error.to_string().contains("another process is rank 1 already"), "{error}");
        let last = form(&spec(2, 3, port)).unwrap();
        let first = outcomes.recv().unwrap().unwrap();
        drop((root.join().unwrap(), first, last));
    });
}

#[test]
fn another_version_of_the_protocol_is_refused() {
    with_a_bad_peer(|port| {
        let mut stream = connect(port);
        let terms = spec(2, 3, port).terms();
        super::super::handshake::prove(&stream, &terms, Instant::now() + Duration::from_secs(20)).unwrap();
        stream.write_all(&77_u32.to_le_bytes()).unwrap();
        let told = String::from_utf8_lossy(&closed(stream)).into_owned();
        assert!(told.contains("version 77"), "{told}");
    });
}

#[test]
fn silence_delays_nobody() {
    let mut silent = Vec::new();
    // More than may be undecided at once.
    with_a_bad_peer(|port| silent.extend((0..100).map(|_| connect(port))));
    for stream in silent {
        closed(stream);
    }
}

#[test]
fn silence_is_not_waited_for_longer_than_allowed() {
    let port = reserve_port();
    std::thread::scope(|scope| {
        let root = scope.spawn(move || {
            let mut spec = spec(0, 2, port);
            spec.handshake_timeout = Duration::from_millis(100);
            form(&spec).unwrap()
        });
        closed(connect(port));
        // One that drips is no better.
        let mut dripping = connect(port);
        while dripping.write_all(&[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let rank = form(&spec(1, 2, port)).unwrap();
        drop((root.join().unwrap(), rank));
    });
}

#[test]
fn disconnecting_halfway_is_forgotten() {
    with_a_bad_peer(|port| {
        drop(connect(port));
        let mut stream = connect(port);
        stream.write_all(&[1; 20]).unwrap();
        drop(stream);
        // One that is through, and ends before the group is formed: its place is free again.
        let stream = connect(port);
        let deadline = Instant::now() + Duration::from_secs(20);
        super::super::handshake::introduce(&stream, &spec(2, 3, port).terms(), 2, deadline).unwrap();
    });
}

#[test]
fn what_listens_there_may_be_something_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"220 mail.example ESMTP, and so on, at some length\r\n").unwrap();
            closed(stream);
        });
        let error = form(&spec(1, 2, port)).unwrap_err();
        assert!(matches!(error, RendezvousError::NotRankZero { .. }), "{error}");
    });
}
