//! Groups of threads, each with its own sockets, that behave and misbehave.

mod bad_peers;
mod collectives;
mod forming;
mod losses;

use super::{RendezvousError, RendezvousSpec, TcpBootstrap};
use flux_memory::BootstrapError;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const TOKEN: &[u8] = b"a token of these tests";

/// A port that is free, and that no other test gets: they run at the same time. The system's own choice would do so only as
/// long as somebody listens.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the ports of outgoing connections; another process of tests begins elsewhere.
    let begin = 10_000 + u16::try_from(std::process::id() % 90).unwrap() * 100;
    loop {
        let port = begin + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Patient where all is well, for tests share few processors.
fn spec(rank: usize, world_size: usize, port: u16) -> RendezvousSpec {
    RendezvousSpec::new(rank, world_size, "127.0.0.1", port, TOKEN)
}

/// Forms a group, and does something on every rank, each on its own thread.
fn on_all_ranks<R: Send>(
    world_size: usize,
    change: impl Fn(&mut RendezvousSpec) + Sync,
    work: impl Fn(TcpBootstrap) -> R + Sync,
) -> Vec<R> {
    let port = free_port();
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (change, work) = (&change, &work);
            scope.spawn(move || {
                let mut spec = spec(rank, world_size, port);
                change(&mut spec);
                work(TcpBootstrap::form(&spec).unwrap())
            })
        };
        let ranks: Vec<_> = (0..world_size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn own_words(error: BootstrapError) -> RendezvousError {
    *error.downcast().expect("an error of the rendezvous")
}

/// Waits until something holds; how long is no part of the test.
fn eventually<T>(mut holds: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}
