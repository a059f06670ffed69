//! Starts the test program itself once for each rank of a group, as a launcher would.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What names the part that a started process plays.
pub const PART: &str = "FLUX_TEST_PART";

/// The processes of a group.
pub struct Processes {
    ranks: Vec<Child>,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Whether with success.
    pub success: bool,
    /// What it wrote to standard error.
    pub errors: String,
    /// How long after the question it ended.
    pub after: Duration,
}

impl Processes {
    /// Starts `world_size` processes that run test `test` of this program, which finds `part` in [`PART`] and its rank in
    /// torchrun's variables, and keeps its temporary files in `folder`. Rank r begins with `before(r)`, a line of shell.
    pub fn start(
        world_size: usize,
        test: &str,
        part: &str,
        folder: &Path,
        before: impl Fn(usize) -> &'static str,
    ) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let program = std::env::current_exe().unwrap();
        let start = |rank: usize| {
            Command::new("sh")
                .arg("-c")
                .arg(format!("{} exec \"$0\" \"$@\"", before(rank)))
                .arg(&program)
                .args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"])
                .env(PART, part)
                .env("TMPDIR", folder)
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", world_size.to_string())
                .env("LOCAL_WORLD_SIZE", world_size.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        Self { ranks: (0..world_size).map(start).collect() }
    }

    /// Ends `rank`'s process as `kill -9` does.
    pub fn kill(&mut self, rank: usize) {
        self.ranks[rank].kill().unwrap();
    }

    /// Waits for all processes, which are killed if they take longer than `limit`; how each ended, in rank order.
    pub fn wait(mut self, limit: Duration) -> Vec<Ended> {
        let begin = Instant::now();
        let watched: Vec<_> = self
            .ranks
            .drain(..)
            .map(|mut child| {
                std::thread::spawn(move || {
                    let mut stderr = child.stderr.take();
                    let read = std::thread::spawn(move || {
                        let mut errors = Vec::new();
                        let _ = stderr.as_mut().map(|stderr| stderr.read_to_end(&mut errors));
                        String::from_utf8_lossy(&errors).into_owned()
                    });
                    let status = loop {
                        if let Some(status) = child.try_wait().unwrap() {
                            break status;
                        }
                        if begin.elapsed() > limit {
                            child.kill().unwrap();
                        }
                        std::thread::sleep(Duration::from_millis(5));
                    };
                    let after = begin.elapsed();
                    Ended { success: status.success(), errors: read.join().unwrap(), after }
                })
            })
            .collect();
        watched.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
