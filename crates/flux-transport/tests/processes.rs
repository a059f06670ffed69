//! Groups of real processes, started as launchers start them, one of which is killed.

use flux_memory::Bootstrap;
use flux_transport::{LaunchEnvironment, TcpBootstrap};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What each process does; the test below starts this test by itself, with a launcher's variables.
#[test]
fn one_rank() {
    if std::env::var("FLUX_TEST_PROCESSES").is_err() {
        return;
    }
    let found = LaunchEnvironment::detect(|name| std::env::var(name).ok()).unwrap().unwrap();
    let group = TcpBootstrap::form(&found.rendezvous("test")).unwrap();
    let ranks = group.all_gather(&[u8::try_from(group.rank()).unwrap()]).unwrap();
    say(&format!("ready {ranks:?}"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some(lost) = group.lost_rank() {
            let error = group.barrier().unwrap_err();
            say(&format!("lost {lost}: {error}"));
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    say("lost nobody");
}

/// On a line of its own: the test harness prints, too.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{line}").and_then(|()| stdout.flush()).unwrap();
}

/// The next line that begins like this.
fn line_that_begins(from: &mut BufReader<ChildStdout>, with: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(from.read_line(&mut line).unwrap() > 0, "the output ended before `{with}`");
        if line.starts_with(with) {
            return line;
        }
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(rank: usize, world_size: usize, port: u16) -> (Process, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["one_rank", "--exact", "--nocapture"]).stdout(Stdio::piped());
    command.env("FLUX_TEST_PROCESSES", "1").env("FLUX_TOKEN", format!("processes of this test at {port}"));
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    for inherited in ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "FLUX_PORT", "TORCHELASTIC_USE_AGENT_STORE"] {
        command.env_remove(inherited);
    }
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (Process(child), stdout)
}

#[test]
fn a_process_that_is_killed_is_named_by_all_others() {
    for victim in [0, 2] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut processes: Vec<_> = (0..3).map(|rank| start(rank, 3, port)).collect();
        for (_, stdout) in &mut processes {
            assert_eq!(line_that_begins(stdout, "ready").trim(), "ready [[0], [1], [2]]");
        }
        processes[victim].0.0.kill().unwrap();
        for (rank, (_, stdout)) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let line = line_that_begins(stdout, "lost");
            assert!(
                line.starts_with(&format!("lost {victim}: rank {victim} is lost")),
                "rank {rank}: {line}"
            );
        }
    }
}
