//! `flux launch` as its users run it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn launch(arguments: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
    command.arg("launch").args(arguments).args(["--", "sh", "-c", script]);
    command
}

fn run(arguments: &[&str], script: &str) -> Output {
    launch(arguments, script).output().unwrap()
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn start(command: &mut Command) -> (Child, BufReader<impl Read + use<>>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

/// Reads lines until so many have come: every rank has got as far as to print one.
fn read_lines(from: &mut impl BufRead, count: usize) -> Vec<String> {
    (0..count)
        .map(|_| {
            let mut line = String::new();
            assert!(from.read_line(&mut line).unwrap() > 0, "the output ended");
            line.trim_end().to_owned()
        })
        .collect()
}

fn kill(signal: &str, pid: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap();
    assert!(status.success());
}

/// Whether the process is there, and no corpse.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn ends_soon(pid: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_running(pid) {
        assert!(Instant::now() < deadline, "process {pid} is still running");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_rank_knows_who_it_is_and_lines_say_whose_they_are() {
    let script = "echo out $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR; echo err $RANK >&2";
    let ran = run(&["-n", "3"], script);
    assert!(ran.status.success());
    let out = ["[0] out 0/3 0/3 127.0.0.1", "[1] out 1/3 1/3 127.0.0.1", "[2] out 2/3 2/3 127.0.0.1"];
    assert_eq!(lines(&ran.stdout), out);
    assert_eq!(lines(&ran.stderr), ["[0] err 0", "[1] err 1", "[2] err 2"]);
}

#[test]
fn ranks_share_a_port_and_a_token_that_others_do_not_know() {
    let secrets = || {
        let ran = run(&["-n", "2"], "echo $MASTER_PORT $FLUX_TOKEN");
        let lines = lines(&ran.stdout);
        let of = |line: &str| line.split_once(' ').unwrap().1.to_owned();
        assert_eq!(of(&lines[0]), of(&lines[1]));
        let (port, token) = of(&lines[0]).split_once(' ').map(|(p, t)| (p.to_owned(), t.to_owned())).unwrap();
        assert!(port.parse::<u16>().unwrap() > 0 && token.len() == 32);
        token
    };
    assert_ne!(secrets(), secrets());
}

#[test]
fn nothing_that_is_printed_gets_lost_and_lines_stay_whole() {
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i of rank $RANK; i=$((i+1)); done; printf end";
    let ran = run(&["-n", "3"], script);
    let text = String::from_utf8(ran.stdout).unwrap();
    for rank in 0..3 {
        let prefix = format!("[{rank}] ");
        let own: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let mut expected: Vec<_> = (0..2000).map(|i| format!("line {i} of rank {rank}")).collect();
        expected.push("end".into());
        assert_eq!(own, expected);
    }
    assert_eq!(text.lines().count(), 3 * 2001);
}

#[test]
fn the_code_is_that_of_the_first_rank_that_fails_and_the_others_are_ended() {
    let begin = Instant::now();
    let ran = run(&["-n", "3"], "[ $RANK = 1 ] && exit 7; sleep 100");
    assert_eq!(ran.status.code(), Some(7));
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(errors.contains("rank 1 exited with code 7; ending the others"), "{errors}");
    assert!(begin.elapsed() < Duration::from_secs(20));

    let ran = run(&["-n", "2"], "[ $RANK = 0 ] && kill -9 $$; sleep 100");
    assert_eq!(ran.status.code(), Some(128 + 9));
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(errors.contains("rank 0 was ended by SIGKILL"), "{errors}");
}

#[test]
fn who_does_not_end_when_asked_is_killed_and_so_is_what_it_started() {
    let script =
        "trap '' TERM; sleep 100 & echo $!; [ $RANK = 1 ] && { sleep 0.3; exit 3; }; wait; sleep 100";
    let begin = Instant::now();
    let ran = run(&["-n", "2", "--grace", "1"], script);
    assert_eq!(ran.status.code(), Some(3));
    assert!(begin.elapsed() < Duration::from_secs(20));
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(errors.contains("killing ranks [0]"), "{errors}");
    let started = lines(&ran.stdout);
    assert_eq!(started.len(), 2);
    for line in started {
        ends_soon(line.split_once(' ').unwrap().1);
    }
}

#[test]
fn what_a_rank_leaves_running_is_not_waited_for() {
    let begin = Instant::now();
    let ran = run(&["-n", "2"], "sleep 100 & echo $!");
    assert!(ran.status.success());
    assert!(begin.elapsed() < Duration::from_secs(20));
    for line in lines(&ran.stdout) {
        ends_soon(line.split_once(' ').unwrap().1);
    }
}

#[test]
fn signals_are_passed_on() {
    for signal in flux_tests::launch::heeded_signals() {
        let script =
            format!("trap 'echo got {signal}; exit 0' {signal}; echo ready; while :; do sleep 0.05; done");
        let (mut child, mut stdout) = start(&mut launch(&["-n", "2"], &script));
        read_lines(&mut stdout, 2);
        kill(signal, child.id());
        let mut got = read_lines(&mut stdout, 2);
        got.sort();
        assert_eq!(got, [format!("[0] got {signal}"), format!("[1] got {signal}")]);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let (mut child, mut stdout) = start(&mut launch(&["-n", "2"], "echo ready; exec sleep 100"));
    read_lines(&mut stdout, 2);
    kill("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_end_with_the_launcher_even_if_it_is_killed() {
    let (mut child, mut stdout) = start(&mut launch(&["-n", "2"], "echo $$; exec sleep 100"));
    let ranks = read_lines(&mut stdout, 2);
    child.kill().unwrap();
    child.wait().unwrap();
    for line in ranks {
        ends_soon(line.split_once(' ').unwrap().1);
    }
}

#[test]
fn a_reader_that_goes_away_does_not_disturb_the_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done; echo done > {}/$RANK",
        folder.path().display()
    );
    let (mut child, stdout) = start(&mut launch(&["-n", "2"], &script));
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(folder.path().join("0").exists() && folder.path().join("1").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let run = |script: &str| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ran = launch(&["-n", "2"], script).stdout(full).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (code, errors) = run("echo said");
    assert!(code == Some(2) && errors.contains("could not all be written"), "{code:?}: {errors}");
    assert_eq!(run("true").0, Some(0));
    assert_eq!(run("echo said; exit 7").0, Some(7));
}

#[test]
fn mistakes_get_one_line() {
    let flux = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_flux")).arg("launch").args(arguments).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (code, errors) = flux(&["-n", "2", "--", "/no/such/command"]);
    assert_eq!(code, Some(2));
    assert!(
        errors.starts_with("error: cannot start \"/no/such/command\"") && errors.lines().count() == 1,
        "{errors}"
    );
    for arguments in
        [&["-n", "0", "--", "true"][..], &["-n", "2"], &["--", "true"], &["-n", "x", "--", "true"]]
    {
        assert_eq!(flux(arguments).0, Some(2), "{arguments:?}");
    }
    // Arguments of the command are not the launcher's.
    let (code, errors) = flux(&["-n", "1", "--", "sh", "-c", "test $0 = -n", "-n"]);
    assert_eq!(code, Some(0), "{errors}");
}
