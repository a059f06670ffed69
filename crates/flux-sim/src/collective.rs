//! The transfers of a schedule, event by event.

use crate::Machine;
use crate::clock::Clock;
use crate::flows::{Flows, SAME_US, Time};
use crate::symmetry::Simulated;
use flux_swizzle::{Collective, Schedule, Transfer};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What goes to another node begins so much later, in µs: what NCCL reckons with for a step over the network.
const NETWORK_US: f64 = 9.6;

/// What transfers cost beyond their bytes, in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) setup_us: f64,
    pub(crate) signal_us: f64,
    /// A sum on the way, for each byte of one part.
    pub(crate) sum_us_per_byte: f64,
    pub(crate) sum_us: f64,
    /// Whether the source's memory is read for it: what SMs have just computed they would have stored anyway.
    pub(crate) reads_source: bool,
    pub(crate) not_before_us: f64,
    /// What the first transfer of a rank takes beyond the others.
    pub(crate) first_us: f64,
}

/// What a rank has computed by when, in the time of a GEMM that is alone: the work, the shard and the chunk.
pub(crate) type Milestones = Vec<(f64, usize, usize)>;

/// How it went.
pub(crate) struct Moved {
    /// By transfer: when it was begun, and when its signal was seen.
    pub(crate) spans: Vec<(f64, f64)>,
    /// Of the ranks that were simulated.
    clocks: Vec<Clock>,
    /// By link, in bytes.
    pub(crate) carried: Vec<f64>,
}

impl Moved {
    /// How `rank` got on.
    pub(crate) fn clock(&self, rank: usize) -> &Clock {
        &self.clocks[rank % self.clocks.len()]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A transfer's bytes begin to flow.
    Flows(usize),
    /// A transfer's signal is seen.
    Seen(usize),
    /// A rank reaches its next milestone, if its clock has not changed since this version.
    Milestone(usize, u32),
}

struct State<'a> {
    schedule: &'a Schedule,
    /// What the simulated ranks send.
    transfers: &'a [Transfer],
    machine: &'a Machine,
    simulated: Simulated,
    costs: Costs,
    bytes: &'a dyn Fn(usize, usize) -> f64,
    /// By transfer: how much it still waits for.
    missing: Vec<usize>,
    /// Transfers by the one that goes before them over the same link.
    by_after: Lists,
    /// Transfers by source and chunk.
    by_chunk: Lists,
    /// Where the chunks of each shard begin, of as many as there are.
    chunks: (Vec<usize>, usize),
    /// Which ranks have sent something.
    awake: Vec<bool>,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    spans: Vec<(f64, f64)>,
}

impl<'a> State<'a> {
    fn new(
        (machine, simulated): (&'a Machine, Simulated),
        schedule: &'a Schedule,
        costs: Costs,
        bytes: &'a dyn Fn(usize, usize) -> f64,
    ) -> Self {
        let sent: usize = (0..simulated.ranks).map(|rank| schedule.sends(rank).len()).sum();
        let transfers = &schedule.transfers()[..sent]; // sorted by source
        let computed = usize::from(schedule.collective() != Collective::AllGather);
        let missing = transfers
            .iter()
            .map(|transfer| transfer.arrivals + usize::from(transfer.after.is_some()) + computed);
        let mut counts = vec![0; schedule.world_size()];
        schedule.transfers().iter().for_each(|of| counts[of.shard] = counts[of.shard].max(of.chunk + 1));
        let begins =
            counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count))).collect();
        let chunks: (Vec<usize>, usize) = (begins, counts.iter().sum());
        let mut by_after = Lists::new(transfers.len(), transfers.len());
        let mut by_chunk = Lists::new(simulated.ranks * chunks.1, transfers.len());
        // Lists are last in, first out.
        for (index, transfer) in transfers.iter().enumerate().rev() {
            transfer.after.into_iter().for_each(|after| by_after.add(after, index));
            by_chunk.add(transfer.source * chunks.1 + chunks.0[transfer.shard] + transfer.chunk, index);
        }
        Self {
            schedule,
            transfers,
            machine,
            simulated,
            costs,
            bytes,
            missing: missing.collect(),
            by_after,
            by_chunk,
            chunks,
            awake: vec![false; simulated.ranks],
            events: BinaryHeap::new(),
            spans: vec![(0.0, 0.0); transfers.len()],
        }
    }

    fn push(&mut self, at_us: f64, event: Event) {
        self.events.push(Reverse((Time(at_us), event)));
    }

    /// One of the things has happened that a transfer waits for.
    fn happened(&mut self, index: usize, now_us: f64) {
        self.missing[index] = self.missing[index].saturating_sub(1);
        if self.missing[index] == 0 {
            self.begin(index, now_us);
        }
    }

    fn begin(&mut self, index: usize, now_us: f64) {
        let transfer = &self.transfers[index];
        let mut setup = self.costs.setup_us;
        if self.schedule.sums(transfer) {
            let parts = (transfer.arrivals + 2) as f64;
            let bytes = (self.bytes)(transfer.shard, transfer.chunk);
            setup += self.costs.sum_us + parts * bytes * self.costs.sum_us_per_byte;
        }
        if !std::mem::replace(&mut self.awake[transfer.source], true) {
            setup += self.costs.first_us;
        }
        let gpus = self.machine.node().gpus;
        if transfer.source / gpus != transfer.destination / gpus {
            setup += NETWORK_US;
        }
        let now_us = now_us.max(self.costs.not_before_us);
        self.spans[index].0 = now_us;
        self.push(now_us + setup, Event::Flows(index));
    }

    /// A chunk has come to a rank, or has been computed there.
    fn available(&mut self, rank: usize, shard: usize, chunk: usize, now_us: f64) {
        let mut next = self.by_chunk.first(rank * self.chunks.1 + self.chunks.0[shard] + chunk);
        while let Some(index) = next {
            next = self.by_chunk.next(index);
            self.happened(index, now_us);
        }
    }

    /// A transfer's signal has been seen.
    fn seen(&mut self, index: usize, now_us: f64) {
        let mut next = self.by_after.first(index);
        while let Some(follower) = next {
            next = self.by_after.next(follower);
            self.happened(follower, now_us);
        }
        let transfer = &self.transfers[index];
        let (rank, shard) = self.simulated.like(transfer.destination, transfer.shard);
        self.available(rank, shard, transfer.chunk, now_us);
    }
}

/// Lists of transfers, each in at most one.
struct Lists {
    heads: Vec<u32>,
    nexts: Vec<u32>,
}

impl Lists {
    const END: u32 = u32::MAX;

    fn new(lists: usize, transfers: usize) -> Self {
        Self { heads: vec![Self::END; lists], nexts: vec![Self::END; transfers] }
    }

    fn add(&mut self, list: usize, transfer: usize) {
        // More transfers than that fit into no memory.
        let transfer_number = u32::try_from(transfer).unwrap_or(Self::END);
        self.nexts[transfer] = std::mem::replace(&mut self.heads[list], transfer_number);
    }

    fn first(&self, list: usize) -> Option<usize> {
        self.heads.get(list).copied().filter(|&head| head != Self::END).map(|head| head as usize)
    }

    fn next(&self, transfer: usize) -> Option<usize> {
        Some(self.nexts[transfer]).filter(|&next| next != Self::END).map(|next| next as usize)
    }
}

/// Runs a schedule from `start_us` on. A ReduceScatter's ranks compute as `milestones` say.
pub(crate) fn run(
    machine: &Machine,
    schedule: &Schedule,
    costs: Costs,
    bytes: &dyn Fn(usize, usize) -> f64,
    start_us: f64,
    milestones: &[Milestones],
) -> Moved {
    let simulated = Simulated::new(machine, schedule, bytes, milestones);
    let ranks = simulated.ranks;
    let mut state = State::new((machine, simulated), schedule, costs, bytes);
    let transfers = state.transfers;
    let milestones = milestones.get(..ranks).unwrap_or_default();
    let mut clocks = vec![Clock::new(machine.node().gpu.memory_gb_per_s); ranks];
    let (mut versions, mut reached) = (vec![0_u32; ranks], vec![0_usize; ranks]);
    // Whose memory a transfer keeps busy.
    let busy = |index: usize| {
        let transfer = &transfers[index];
        [Some(transfer.destination % ranks), Some(transfer.source).filter(|_| costs.reads_source)]
            .into_iter()
            .flatten()
    };
    let mut flows = Flows::new(machine.links().iter().map(|link| link.gb_per_s));
    for index in 0..transfers.len() {
        if state.missing[index] == 0 {
            state.begin(index, start_us);
        }
    }
    for (rank, milestones) in milestones.iter().enumerate() {
        if let Some(&(work, ..)) = milestones.first() {
            state.push(work, Event::Milestone(rank, 0));
        }
    }
    let mut touched: Vec<usize> = Vec::new();
    loop {
        let event = state.events.peek().map(|Reverse((time, _))| time.0);
        let Some(now) = [event, flows.next_end_us()].into_iter().flatten().reduce(f64::min) else { break };
        while let Some((index, gb_per_s)) = flows.end(now) {
            let seen = now + costs.signal_us;
            state.spans[index].1 = seen;
            state.push(seen, Event::Seen(index));
            for rank in busy(index) {
                clocks[rank].traffic_rises(now, -gb_per_s);
                touched.push(rank);
            }
        }
        while let Some(&Reverse((_, event))) = state.events.peek().filter(|next| next.0.0.0 <= now + SAME_US)
        {
            state.events.pop();
            match event {
                Event::Flows(index) => {
                    let transfer = &transfers[index];
                    let mut route = machine.route(transfer.source, transfer.destination);
                    route.iter_mut().for_each(|link| *link = simulated.link(machine, *link));
                    flows.begin(index, route, bytes(transfer.shard, transfer.chunk), now);
                }
                Event::Seen(index) => state.seen(index, now),
                Event::Milestone(rank, version) if version == versions[rank] => {
                    let work = milestones[rank][reached[rank]].0;
                    while let Some(&(_, shard, chunk)) =
                        milestones[rank].get(reached[rank]).filter(|next| next.0 <= work)
                    {
                        reached[rank] += 1;
                        state.available(rank, shard, chunk, now);
                    }
                    touched.push(rank);
                }
                Event::Milestone(..) => {}
            }
        }
        flows.share(now, |index, risen| {
            for rank in busy(index) {
                clocks[rank].traffic_rises(now, risen);
                touched.push(rank);
            }
        });
        touched.sort_unstable();
        touched.dedup();
        for rank in touched.drain(..) {
            let next = milestones.get(rank).and_then(|of_rank| of_rank.get(reached[rank]));
            if let Some(&(work, ..)) = next {
                versions[rank] += 1;
                state.push(clocks[rank].time_of(work).max(now), Event::Milestone(rank, versions[rank]));
            }
        }
    }
    let carried = flows.carried();
    let carried = (0..carried.len()).map(|link| carried[simulated.link(machine, link)]).collect();
    Moved { spans: state.spans.repeat(simulated.times()), clocks, carried }
}
