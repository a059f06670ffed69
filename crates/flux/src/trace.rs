//! What the last call of an operation did, and when: for looking at it.

use crate::call::Phased;
use crate::{AgGemm, Error, GemmAr, GemmRs, Group, Result};
use flux_launch::{Clock, UnitTrace};
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// What the last call of one rank did. Times are nanoseconds of one clock for all ranks, which begins somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallTrace {
    /// The rank.
    pub rank: usize,
    /// The units of work of its GEMM, or GEMMs: tiles, and parts of tiles that are split along K. In the order in which
    /// they are begun.
    pub units: Vec<UnitTrace>,
    /// The chunks that its transfer streams moved, in the order of each stream. What a fused ReduceScatter's tiles carry
    /// themselves is not among them.
    pub transfers: Vec<TransferTrace>,
}

/// A chunk that a transfer stream moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferTrace {
    /// Which of the rank's transfer streams.
    pub stream: usize,
    /// The rank that it came from: whose rows they are, or one that passed them on.
    pub from: usize,
    /// The rank that it went to.
    pub to: usize,
    /// The shard that it is a chunk of.
    pub shard: usize,
    /// Its size.
    pub bytes: usize,
    /// The number of the signal, among the receiver's gates, that was raised after it; none if nobody waits for it alone.
    pub signal: Option<usize>,
    /// The copy began: the stream had got there, and the receiver was ready.
    pub begin_ns: u64,
    /// The copy ended; its signal was raised after this.
    pub end_ns: u64,
}

impl CallTrace {
    /// From the first thing that it shows to the end of the last, in nanoseconds; none if it shows nothing.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        let units = self.units.iter().map(|unit| {
            let begin = unit.gate_begin_ns.min(unit.multiply_begin_ns);
            (begin, unit.stored_ns.max(unit.handed_over_ns).max(unit.signal_ns.unwrap_or(0)))
        });
        let transfers = self.transfers.iter().map(|transfer| (transfer.begin_ns, transfer.end_ns));
        units.chain(transfers).reduce(|(begin, end), (b, e)| (begin.min(b), end.max(e)))
    }
}

macro_rules! traced {
    ($($op:ty),*) => {
        $(impl $op {
            /// What the last call of each rank of this process did, and when, by this process's clock; waits on this thread until these have ended. An error unless the
            /// group was formed with [`crate::GroupConfig::trace`].
            pub fn traces(&self) -> Result<Vec<CallTrace>> {
                last_calls(self)
            }
        })*
    };
}
traced!(AgGemm, GemmRs, GemmAr);

/// The traces of all ranks, after waiting for their last calls to end.
fn last_calls<Op: Phased>(op: &Op) -> Result<Vec<CallTrace>> {
    let group = op.group();
    if !group.config().trace {
        return Err(Error::NotTraced);
    }
    let _turn = group.turns().all.write().unwrap_or_else(PoisonError::into_inner);
    op.settle();
    let ranks = group.local_ranks();
    ranks.clone().for_each(|rank| op.state().lock(rank).schedules.settle());
    group.check()?;
    let mut clocks = BTreeMap::new();
    ranks.map(|rank| last_call(op, group, rank, &mut clocks)).collect()
}

/// `clocks` are those of the devices seen so far, by their numbers.
fn last_call<Op: Phased>(
    op: &Op,
    group: &Group,
    rank: usize,
    clocks: &mut BTreeMap<Option<usize>, Clock>,
) -> Result<CallTrace> {
    let device = group.device(rank)?;
    let number = device.as_cuda().map(|gpu| gpu.ordinal());
    if let std::collections::btree_map::Entry::Vacant(place) = clocks.entry(number) {
        place.insert(group.launcher(rank).clock(device)?);
    }
    let clock = &clocks[&number];
    let mut trace = CallTrace { rank, ..CallTrace::default() };
    if let Some(units) = op.state().lock(rank).schedules.trace() {
        trace.units = units.read(clock)?;
    }
    let mut streams: Vec<(usize, usize)> = Vec::new();
    let mut stream_of = |of: (usize, usize)| {
        let known = streams.iter().position(|&stream| stream == of);
        known.unwrap_or_else(|| {
            streams.push(of);
            streams.len() - 1
        })
    };
    for (index, log) in op.transfer_logs(rank).into_iter().enumerate() {
        let mut unreadable = None;
        log.each(|moved, begin, end| match (clock.of_stamp(begin), clock.of_stamp(end)) {
            (Ok(begin_ns), Ok(end_ns)) => trace.transfers.push(TransferTrace {
                stream: stream_of((index, moved.lane)),
                from: moved.from,
                to: moved.to,
                shard: moved.shard,
                bytes: moved.bytes,
                signal: moved.signal,
                begin_ns,
                end_ns,
            }),
            (Err(error), _) | (_, Err(error)) => unreadable = Some(error),
        });
        if let Some(error) = unreadable {
            return Err(error.into());
        }
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use crate::{AgGemm, BackendChoice, DType, Error, GemmAr, GemmRs, Group, GroupConfig, OpSpec};

    fn group(trace: bool) -> Group {
        let config = GroupConfig { backend: BackendChoice::Host, trace, ..GroupConfig::default() };
        Group::local_with(3, config).unwrap()
    }

    /// Room for records and stamps is made only for groups that are traced.
    #[test]
    fn without_tracing_nothing_is_allocated_for_it() {
        for traced in [false, true] {
            let (group, spec) = (group(traced), OpSpec::new(48, 16, 600, DType::Bf16));
            let ag = AgGemm::new(&group, spec.clone()).unwrap();
            let rs = GemmRs::new(&group, spec.clone()).unwrap();
            let ar = GemmAr::new(&group, spec).unwrap();
            for rank in group.local_ranks() {
                assert_eq!(counts(&ag, rank), (traced.into(), traced.into()));
                assert_eq!(counts(&rs, rank), (traced.into(), traced.into()));
                assert_eq!(counts(&ar, rank), (traced.into(), 3 * usize::from(traced)));
            }
            for traces in [ag.traces(), rs.traces(), ar.traces()] {
                match traces {
                    Ok(traces) => assert!(traced && traces.iter().all(|trace| trace.span_ns().is_none())),
                    Err(error) => assert!(!traced && matches!(error, Error::NotTraced), "{error}"),
                }
            }
        }
    }

    /// How many buffers of records a rank has, and how many logs of transfers.
    fn counts<Op: super::Phased>(op: &Op, rank: usize) -> (usize, usize) {
        let records = op.state().lock(rank).schedules.trace().is_some();
        (records.into(), op.transfer_logs(rank).len())
    }
}
