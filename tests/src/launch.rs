//! Starts the test program itself once for each rank of a group, as a launcher would; and what such tests share.

use crate::data::{Fill, matrix};
use flux::{AgGemm, DType, GemmAr, GemmRs, Group, OpSpec, Operation, PathPreference, Whole};
use half::bf16;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What names the part that a started process plays.
pub const PART: &str = "FLUX_TEST_PART";

/// What processes may take, at most, on a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(300);

/// How long those may go on of whose group one has ended before it had begun.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// The processes of a group.
pub struct Processes {
    ranks: Vec<Child>,
}

/// A port that nobody listens on. It is none of those that the system gives away by itself, so nobody else gets it before
/// rank 0 does.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % 1000).unwrap_or(0) * 10;
    let mut candidates = (0..10_000).map(|_| 20_000 + (own + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000);
    candidates.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).expect("a free port")
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Whether with success: it has run the one test, which has passed.
    pub success: bool,
    /// What it wrote.
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
        let port = free_port();
        let program = std::env::current_exe().unwrap();
        let start = |rank: usize| {
            Command::new("sh")
                .arg("-c")
                .arg(format!("{} exec \"$0\" \"$@\" >&2", before(rank)))
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

    /// Whether one of them has ended.
    fn any_ended(&mut self) -> bool {
        self.ranks.iter_mut().any(|child| child.try_wait().unwrap().is_some())
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
                    let errors = read.join().unwrap();
                    // Under a name that is no test's, none fails either.
                    let success = status.success() && errors.contains("test result: ok. 1 passed");
                    Ended { success, errors, after }
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

/// Calls operation `op` of `group` until that fails, and ends this process; the file `called-R` shows that rank R has begun.
pub fn call_forever(group: &Group, op: &str) -> ! {
    let mut spec = OpSpec::new(64, 64, 200, DType::Bf16);
    (spec.path, spec.one_shot_rows) = (PathPreference::Fused, Some(100));
    match op {
        "ag-gemm" => forever(group, &AgGemm::new(group, spec).unwrap()),
        "gemm-rs" => forever(group, &GemmRs::new(group, spec).unwrap()),
        "gemm-ar" => forever(group, &GemmAr::new(group, spec).unwrap()),
        other => panic!("there is no operation {other}"),
    }
}

#[allow(clippy::print_stderr)] // what the test looks for
fn forever(group: &Group, op: &impl Operation) -> ! {
    let rank = group.local_ranks().start;
    let OpSpec { n, k, max_m, .. } = *op.spec();
    let (a, b) = (matrix::<bf16>(max_m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let calls = [max_m, 50].map(|m| Whole::place(group, op, &a[..m * k], &b, m).unwrap());
    let once = || calls.iter().try_for_each(|call| call.enqueue().and_then(|_| call.synchronize()));
    once().unwrap();
    std::fs::write(std::env::temp_dir().join(format!("called-{rank}")), "").unwrap();
    loop {
        if let Err(error) = once() {
            eprintln!("rank {rank} ends: {error}");
            std::process::exit(3);
        }
    }
}

/// Starts `world_size` processes that run `test` when they are told `part`, each of which begins with `before`, a line of shell:
/// all must pass, and leave nothing behind.
pub fn check_passed(before: &'static str, world_size: usize, test: &str, part: &str) {
    let folder = TempDir::new().unwrap();
    let processes = Processes::start(world_size, test, part, folder.path(), |_| before);
    for (rank, Ended { success, errors, after }) in processes.wait(LIMIT).into_iter().enumerate() {
        assert!(success, "{before} {part}: rank {rank} of {world_size}, after {after:?}: {errors}");
    }
    assert_eq!(names_in(folder.path()), [""; 0], "{before} {part}: {world_size} ranks");
}

/// Starts `world_size` processes that [`call_forever`] when they are told `part`, and kills `killed`: the others must end within
/// `limit`, name it, and leave nothing behind.
pub fn check_killed(world_size: usize, test: &str, part: &str, killed: usize, limit: Duration) {
    check_killed_after("", world_size, test, part, killed, limit);
}

/// As [`check_killed`], where each process begins with `before`, a line of shell.
pub fn check_killed_after(
    before: &'static str,
    world_size: usize,
    test: &str,
    part: &str,
    killed: usize,
    limit: Duration,
) {
    let folder = TempDir::new().unwrap();
    let mut processes = Processes::start(world_size, test, part, folder.path(), |_| before);
    let begin = Instant::now();
    let called = |rank: usize| folder.path().join(format!("called-{rank}"));
    while !(0..world_size).all(|rank| called(rank).exists()) {
        if processes.any_ended() || begin.elapsed() > LIMIT {
            panic!("{part}: the ranks do not begin: {:?}", processes.wait(BEGIN_LIMIT));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    processes.kill(killed);
    for (rank, ended) in processes.wait(LIMIT).into_iter().enumerate().filter(|&(rank, _)| rank != killed) {
        assert!(!ended.success && ended.after < limit, "{part}, rank {rank}: {ended:?}");
        assert!(ended.errors.contains(&format!("rank {killed} is lost")), "{part}: {}", ended.errors);
    }
    (0..world_size).for_each(|rank| std::fs::remove_file(called(rank)).unwrap());
    assert_eq!(names_in(folder.path()), [""; 0], "{part}");
}

/// The names in a folder, in order.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Which of TERM, INT and HUP the processes that are started here can be ended by: what this process ignores, as under `nohup` or in a
/// shell's background, they ignore, too.
pub fn heeded_signals() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let heeded = |(signal, number): (_, u32)| (ignored >> (number - 1) & 1 == 0).then_some(signal);
    [("TERM", 15), ("INT", 2), ("HUP", 1)].into_iter().filter_map(heeded).collect()
}
