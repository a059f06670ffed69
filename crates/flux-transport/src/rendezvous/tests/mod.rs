//! Groups of threads, each with its own sockets, that behave and misbehave.

mod bad_peers;
mod collectives;
mod forming;
mod losses;

use super::{RendezvousError, RendezvousSpec, TcpBootstrap};
use flux_memory::BootstrapError;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const TOKEN: &[u8] = b"a token of these tests";

/// Sockets on which rank 0 will listen, by port: as long as they are here, nobody else gets their ports.
static RESERVED: Mutex<BTreeMap<u16, TcpListener>> = Mutex::new(BTreeMap::new());

/// A port that is free, and stays so until rank 0 listens there.
fn reserve_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    RESERVED.lock().unwrap().insert(port, listener);
    port
}

/// Forms a group; rank 0 on the socket that has been reserved for it, if there is one.
fn form(spec: &RendezvousSpec) -> Result<TcpBootstrap, RendezvousError> {
    let reserved = if spec.rank == 0 { RESERVED.lock().unwrap().remove(&spec.port) } else { None };
    match reserved {
        Some(listener) => TcpBootstrap::form_on(listener, spec),
        None => TcpBootstrap::form(spec),
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
    let port = reserve_port();
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (change, work) = (&change, &work);
            scope.spawn(move || {
                let mut spec = spec(rank, world_size, port);
                change(&mut spec);
                work(form(&spec).unwrap())
            })
        };
        let ranks: Vec<_> = (0..world_size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn own<T>(result: Result<T, BootstrapError>) -> Result<T, RendezvousError> {
    result.map_err(own_words)
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
