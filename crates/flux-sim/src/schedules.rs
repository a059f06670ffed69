//! Schedules that several simulations have in common.

use crate::{Machine, Outcome, Plan, Problem, Result};
use flux_swizzle::{Collective, Pattern, Schedule};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Those of an AllReduce in two steps, and of another number of chunks. One of a thousand ranks takes 100 MB.
const KEPT: usize = 3;

/// What a schedule is made of: of each shard the number of chunks.
type Key = (Collective, Pattern, Vec<usize>);

/// Simulates calls that have schedules in common, without making these again: that takes half of the time with many ranks. It keeps
/// the last few.
#[derive(Debug, Default)]
pub struct Schedules {
    kept: RefCell<VecDeque<(Key, Rc<Schedule>)>>,
}

impl Schedules {
    /// The same as [`crate::simulate`].
    pub fn simulate(&self, machine: &Machine, problem: &Problem, plan: &Plan) -> Result<Outcome> {
        crate::operation::simulate_with(self, machine, problem, plan)
    }

    pub(crate) fn of(
        &self,
        collective: Collective,
        pattern: &Pattern,
        chunks: impl Fn(usize) -> usize,
    ) -> Result<Rc<Schedule>> {
        let key: Key = (collective, pattern.clone(), (0..pattern.world_size()?).map(&chunks).collect());
        let mut kept = self.kept.borrow_mut();
        if let Some((_, known)) = kept.iter().find(|(of, _)| *of == key) {
            return Ok(Rc::clone(known));
        }
        let schedule = Rc::new(Schedule::new(collective, pattern, chunks)?);
        kept.truncate(KEPT - 1);
        kept.push_front((key, Rc::clone(&schedule)));
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_made_once() {
        let schedules = Schedules::default();
        let of = |ranks: usize, chunks: usize| {
            schedules.of(Collective::AllGather, &Pattern::ring(ranks), |_| chunks).unwrap()
        };
        let first = of(3, 1);
        assert!(Rc::ptr_eq(&first, &of(3, 1)));
        for (ranks, chunks) in [(4, 1), (3, 2), (5, 1)] {
            assert_eq!(of(ranks, chunks).world_size(), ranks);
            assert_eq!(of(ranks, chunks).transfers().len(), ranks * (ranks - 1) * chunks);
        }
        assert!(!Rc::ptr_eq(&first, &of(3, 1)) && schedules.kept.borrow().len() == KEPT);
    }
}
