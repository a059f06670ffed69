//! A channel between ranks that are threads of one process, each as if it were a process of its own: what the tests of groups
//! of processes need where nobody has to die.

use flux::{Bootstrap, BootstrapError, Group, GroupConfig};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a rank waits for the others.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the threads meet.
#[derive(Debug)]
struct Meeting {
    world_size: usize,
    round: Mutex<Round>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Round {
    number: u64,
    said: Vec<Option<Vec<u8>>>,
    /// What was said in the round before, until all have heard it.
    heard: Vec<Vec<u8>>,
    lost: Option<usize>,
    /// A rank that has dropped its end.
    left: Option<usize>,
}

/// One rank's end of the channel.
#[derive(Debug)]
pub struct Thread {
    meeting: Arc<Meeting>,
    rank: usize,
}

impl Thread {
    /// Makes the others believe that `rank` is lost.
    pub fn lose(&self, rank: usize) {
        self.meeting.round.lock().unwrap_or_else(PoisonError::into_inner).lost = Some(rank);
        self.meeting.changed.notify_all();
    }
}

impl Bootstrap for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.meeting.world_size
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let Meeting { round, changed, .. } = &*self.meeting;
        let mut round = round.lock().unwrap_or_else(PoisonError::into_inner);
        let number = round.number;
        round.said[self.rank] = Some(bytes.to_vec());
        if round.said.iter().all(Option::is_some) {
            round.heard = round.said.iter_mut().filter_map(Option::take).collect();
            round.number += 1;
            changed.notify_all();
        } else {
            let missing = |round: &mut Round| round.number == number && round.lost.or(round.left).is_none();
            let (woken, timeout) =
                changed.wait_timeout_while(round, LIMIT, missing).unwrap_or_else(PoisonError::into_inner);
            round = woken;
            if round.number == number {
                let gone = round.lost.or(round.left);
                let why = gone.map_or(format!("{timeout:?}"), |rank| format!("rank {rank} has gone"));
                return Err(format!("not all ranks came: {why}").into());
            }
        }
        // Nobody can begin the next round before all have left this one: each says one thing in each.
        Ok(round.heard.clone())
    }

    fn lost_rank(&self) -> Option<usize> {
        self.meeting.round.lock().unwrap_or_else(PoisonError::into_inner).lost
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.meeting.round.lock().unwrap_or_else(PoisonError::into_inner).left = Some(self.rank);
        self.meeting.changed.notify_all();
    }
}

/// Ends of a channel between so many ranks.
pub fn channel(world_size: usize) -> Vec<Arc<Thread>> {
    let round = Round { said: vec![None; world_size], ..Round::default() };
    let meeting = Arc::new(Meeting { world_size, round: Mutex::new(round), changed: Condvar::new() });
    (0..world_size).map(|rank| Arc::new(Thread { meeting: Arc::clone(&meeting), rank })).collect()
}

/// Runs `body` on a thread for each rank, with its end of a channel; returns what each has made of it, in rank order.
pub fn on_threads<T: Send>(world_size: usize, body: impl Fn(Arc<Thread>) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            channel(world_size).into_iter().map(|end| scope.spawn(move || body(end))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Runs `body` on a thread for each rank of a group of so many, formed with `config`.
pub fn in_group<T: Send>(
    world_size: usize,
    config: &GroupConfig,
    body: impl Fn(&Group) -> T + Sync,
) -> Vec<T> {
    on_threads(world_size, |end| body(&Group::with_bootstrap(end, config.clone()).unwrap()))
}
