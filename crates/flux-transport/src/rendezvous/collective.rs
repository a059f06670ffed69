//! Collective calls: every rank's bytes go to rank 0, and all of them back to every rank.

use super::channel::{Channel, State};
use super::error::RendezvousError;
use super::frame::{Call, Collective, Frame, MAX_CONTRIBUTION};
use super::liveness::{grace, out_of_step};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

type Parts = Vec<Vec<u8>>;

impl Channel {
    /// Every rank's `bytes`, in rank order.
    pub(super) fn collect(&self, collective: Collective, bytes: &[u8]) -> Result<Parts, RendezvousError> {
        if bytes.len() > MAX_CONTRIBUTION {
            return Err(RendezvousError::TooLarge { bytes: bytes.len(), limit: MAX_CONTRIBUTION });
        }
        // One call after the other, in whatever threads they are made.
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if self.world_size == 1 {
            return Ok(vec![bytes.to_vec()]);
        }
        if let Some(failure) = &self.state().failure {
            return Err(failure.clone());
        }
        *calls += 1;
        let call = Call { number: *calls, collective };
        if self.rank == 0 { self.collect_at_root(call, bytes) } else { self.collect_elsewhere(call, bytes) }
    }

    fn collect_at_root(&self, call: Call, bytes: &[u8]) -> Result<Parts, RendezvousError> {
        let come = |state: &mut State| {
            let theirs = |rank: usize| state.contributions[rank].as_ref().map(|(theirs, _)| *theirs);
            for rank in 1..self.world_size {
                if let Some(theirs) = theirs(rank).filter(|theirs| *theirs != call) {
                    return Some(Err((rank, theirs)));
                }
            }
            if (1..self.world_size).any(|rank| theirs(rank).is_none()) {
                return None;
            }
            let parts = state.contributions.iter_mut().map(|part| part.take().map(|(_, part)| part));
            let mut parts: Parts = parts.map(Option::unwrap_or_default).collect();
            parts[0] = bytes.to_vec();
            Some(Ok(parts))
        };
        let deadline = Instant::now() + self.collective_timeout;
        match self.wait_for(deadline, come)? {
            Some(Ok(parts)) => {
                let result = Frame::Result(call, parts);
                self.broadcast(&result, None);
                let Frame::Result(_, parts) = result else { return Ok(Vec::new()) };
                Ok(parts)
            }
            Some(Err((rank, theirs))) => {
                let failure = out_of_step(rank, theirs, call);
                Err(self.give_up(failure, &Frame::OutOfStep { rank, theirs, ours: call }))
            }
            None => {
                let missing = (1..self.world_size).filter(|&rank| self.state().contributions[rank].is_none());
                let missing: Vec<_> = missing.collect();
                let failure = RendezvousError::Late { missing: missing.clone(), call: call.number };
                Err(self.give_up(failure, &Frame::Late(call, missing)))
            }
        }
    }

    /// Rank 0 tells all that a call has failed; what had failed before, if anything, stays the reason.
    fn give_up(&self, failure: RendezvousError, frame: &Frame) -> RendezvousError {
        self.fail_all(failure.clone(), frame);
        self.state().failure.clone().unwrap_or(failure)
    }

    fn collect_elsewhere(&self, call: Call, bytes: &[u8]) -> Result<Parts, RendezvousError> {
        let Some(root) = self.peers.first().and_then(Option::as_ref) else { return Ok(Vec::new()) };
        if let Err(error) = self.send(root, &Frame::Contribution(call, bytes.to_vec()).encode()) {
            self.lose(0, &error.to_string());
        }
        let come = |state: &mut State| match state.result.take() {
            Some((answered, parts)) if answered == call => Some(parts),
            _ => None,
        };
        let deadline = Instant::now() + self.collective_timeout + grace(self.collective_timeout);
        match self.wait_for(deadline, come)? {
            Some(parts) => Ok(parts),
            None => {
                // Rank 0 itself did not come, or it would have said who is missing.
                let failure = RendezvousError::Late { missing: vec![0], call: call.number };
                self.fail(failure.clone());
                let _ = self.send(root, &Frame::Late(call, vec![0]).encode());
                Err(failure)
            }
        }
    }

    /// Waits until `come` finds what it looks for; `None` if it does not in time. A failure ends it at once, and so does
    /// a rank that has left, unless all had come before. What rank 0 has sent counts in the order in which it came: a
    /// result is good, even if something fails right after it. Rank 0 itself sends no result after a failure.
    fn wait_for<T>(
        &self,
        deadline: Instant,
        mut come: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, RendezvousError> {
        let mut state: MutexGuard<'_, State> = self.state();
        loop {
            if self.rank == 0
                && let Some(failure) = &state.failure
            {
                return Err(failure.clone());
            }
            if let Some(found) = come(&mut state) {
                return Ok(Some(found));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(rank) = state.left.iter().position(|&left| left && !state.is_failing) {
                return Err(RendezvousError::Left { rank });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
