//! What is told to the log. In a program of its own: others' threads, which have no log, decide for all what is worth a line.

use flux_memory::Bootstrap;
use flux_transport::{RendezvousSpec, TcpBootstrap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts warnings of its thread.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

/// Each stranger is told, but not without end.
#[test]
fn refused_peers_are_logged_and_do_not_fill_the_log() {
    for (strangers, lines) in [(3, 3), (60, 21)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, said) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let spec = |rank| RendezvousSpec::new(rank, 2, "127.0.0.1", port, *b"a token of this test");
        std::thread::scope(|scope| {
            let log = Warnings(Arc::clone(&said));
            let root = scope.spawn(move || {
                let form = || TcpBootstrap::form_on(listener, &spec(0)).unwrap().barrier().unwrap();
                tracing::subscriber::with_default(log, form);
            });
            for _ in 0..strangers {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.write_all(&[0; 64]).unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
            TcpBootstrap::form(&spec(1)).unwrap().barrier().unwrap();
            root.join().unwrap();
        });
        assert_eq!(said.load(Ordering::Relaxed), lines);
    }
}
