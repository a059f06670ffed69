//! The processes of the ranks: each leads a process group, so that what it starts ends with it.

use super::Event;
use super::output::{Pumps, Target};
use crate::error::Error;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

/// How a rank has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(u8),
    Signalled(i32),
}

impl Ending {
    /// As shells count it.
    pub(super) fn code(self) -> u8 {
        match self {
            Ending::Exited(code) => code,
            Ending::Signalled(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Exited(code) => write!(f, "exited with code {code}"),
            Ending::Signalled(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "was ended by {name}"),
                None => write!(f, "was ended by signal {signal}"),
            },
        }
    }
}

/// The processes of all ranks. They are reaped only at the end, so that their numbers, by which they are signalled, do not
/// come to mean other processes.
pub(super) struct Ranks {
    children: Vec<Child>,
}

impl Ranks {
    /// Starts `world_size` processes; each end is sent as an event.
    pub(super) fn start(
        command: &[OsString],
        world_size: usize,
        pumps: &mut Pumps,
        events: &Sender<Event>,
    ) -> Result<Self, Error> {
        let port = free_port().map_err(|source| Error::Launcher { what: "a TCP port", source })?;
        let token = random_token()?;
        let mut ranks = Ranks { children: Vec::with_capacity(world_size) };
        for rank in 0..world_size {
            // Dropping `ranks` on the way out ends those that run.
            let mut child = spawn(command, rank, world_size, port, &token)?;
            let (stdout, stderr, pid) = (child.stdout.take(), child.stderr.take(), pid(&child));
            ranks.children.push(child);
            let failed = |source| Error::Launcher { what: "a thread", source };
            stdout.map(|pipe| pumps.start(rank, pipe, Target::Stdout)).transpose().map_err(failed)?;
            stderr.map(|pipe| pumps.start(rank, pipe, Target::Stderr)).transpose().map_err(failed)?;
            let events = events.clone();
            let watch = move || {
                let _ = events.send(Event::Ended(rank, wait(pid)));
            };
            std::thread::Builder::new().name(format!("rank-{rank}")).spawn(watch).map_err(failed)?;
        }
        Ok(ranks)
    }

    /// Sends a signal to the ranks that are running, and to what they have started.
    pub(super) fn signal(&self, running: &[bool], signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        for (child, _) in self.children.iter().zip(running).filter(|(_, running)| **running) {
            signal_group(child, signal);
        }
    }

    /// Ends whatever is left of all ranks.
    pub(super) fn kill_groups(&self) {
        self.children.iter().for_each(|child| signal_group(child, Signal::KILL));
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill_groups();
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn spawn(
    command: &[OsString],
    rank: usize,
    world_size: usize,
    port: u16,
    token: &str,
) -> Result<Child, Error> {
    let (program, arguments) = command.split_first().ok_or(Error::NoCommand)?;
    let mut command = Command::new(program);
    command.args(arguments);
    let (rank, world_size, port) = (rank.to_string(), world_size.to_string(), port.to_string());
    for (name, value) in [
        ("RANK", rank.as_str()),
        ("WORLD_SIZE", &world_size),
        ("LOCAL_RANK", &rank),
        ("LOCAL_WORLD_SIZE", &world_size),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("FLUX_TOKEN", token),
    ] {
        command.env(name, value);
    }
    // What another launcher, around this one, has said of its own ranks.
    for name in
        ["FLUX_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    #[cfg(target_os = "linux")]
    end_with_this_process(&mut command);
    command.spawn().map_err(|source| Error::CannotStart { program: program.clone(), source })
}

/// The process is killed when this one ends, however it does.
#[cfg(target_os = "linux")]
fn end_with_this_process(command: &mut Command) {
    let launcher = rustix::process::getpid();
    let before_exec = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended just before.
        if rustix::process::getppid() != Some(launcher) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec this makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(before_exec) };
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn signal_group(child: &Child, signal: Signal) {
    if let Some(pid) = pid(child) {
        // There may be nobody left.
        let _ = kill_process_group(pid, signal);
    }
}

/// Waits for the end of a process without reaping it.
fn wait(pid: Option<Pid>) -> Ending {
    let Some(pid) = pid else { return Ending::Exited(u8::MAX) };
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => {
                let exited = status.exit_status().and_then(|code| u8::try_from(code & 0xff).ok());
                let signalled = status.terminating_signal().map(Ending::Signalled);
                return exited.map(Ending::Exited).or(signalled).unwrap_or(Ending::Exited(u8::MAX));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Ending::Exited(u8::MAX),
        }
    }
}

/// Free now, and given to nobody else for a while: the system hands out its ports in turn.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A secret that only the ranks share.
fn random_token() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let failed = |error| Error::Launcher { what: "random numbers", source: std::io::Error::other(error) };
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
