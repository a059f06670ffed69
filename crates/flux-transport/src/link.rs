//! What each rank needs to take part in a transfer.

use crate::{Error, Exchange, ExchangeLink, Result, TransferLog};
use flux_memory::{
    Address, Device, Event, FaultLog, PerRank, Stream, SymmetricSignals, SymmetricSpace, WaitPoint, WaitSite,
};
use std::sync::Arc;

/// The ranks of a group, and of those that live in this process where each computes, and where its expired waits are recorded.
#[derive(Clone, Debug)]
pub struct Members {
    /// All ranks: where their symmetric memory is.
    pub space: SymmetricSpace,
    /// Rank r's device.
    pub devices: PerRank<Device>,
    /// Rank r's log.
    pub faults: PerRank<Arc<FaultLog>>,
    /// The end of rank r's last call, of whatever operation: its calls come one after the other. Two that wait for peers
    /// at the same time could each hold what the other's peers need.
    pub last_calls: PerRank<Arc<Event>>,
    /// How rank r sends to the ranks that it cannot address, and receives from them; none where there are no such ranks.
    pub exchanges: PerRank<Option<Arc<dyn Exchange>>>,
    /// Whether it is noted when chunks move ([`crate::TransferLog`]).
    pub trace: bool,
}

impl Members {
    /// The ranks on `devices`, all in this process, none of which has made a call yet, and whose transfers are not traced.
    pub fn new(devices: Vec<Device>, faults: Vec<Arc<FaultLog>>) -> Result<Self> {
        Self::of(SymmetricSpace::here(&devices), devices.into(), faults.into())
    }

    /// The ranks of `space`: for each that lives in this process, its device and log. If some cannot address each other,
    /// [`Members::exchanges`] is to be filled in.
    pub fn of(
        space: SymmetricSpace,
        devices: PerRank<Device>,
        faults: PerRank<Arc<FaultLog>>,
    ) -> Result<Self> {
        let event = |rank| Event::new(&devices[rank]).map(Arc::new);
        let last_calls = PerRank::try_new(devices.ranks(), event)?;
        let exchanges = PerRank::new(devices.ranks(), |_| None);
        Ok(Self { space, devices, faults, last_calls, exchanges, trace: false })
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.space.world_size()
    }

    /// The ranks that live in this process.
    pub fn local_ranks(&self) -> std::ops::Range<usize> {
        self.space.local_ranks()
    }
}

/// A fault to rehearse: every data signal from one rank to another is lost. What waits for it runs into its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalLoss {
    /// The rank that raises the signals.
    pub from: usize,
    /// The rank that never sees them.
    pub to: usize,
}

/// One rank's transfer streams, and the events that tie them to the caller's stream.
#[derive(Debug)]
pub(crate) struct Link {
    /// One for each lane of its schedule: what goes over different links need not wait for each other. The first is always there.
    lanes: Vec<Lane>,
    begin: Event,
    /// What the caller's stream has done so far, where words that are raised then are raised by the first lane.
    done: Option<Event>,
    /// What a lane has done so far, for another one that is to follow it.
    turn: Event,
    last_call: Arc<Event>,
    /// When chunks move, if somebody wants to know.
    pub(crate) log: Option<TransferLog>,
    /// To and from the ranks that cannot be addressed; none where there are none.
    pub(crate) exchange: Option<ExchangeLink>,
}

#[derive(Debug)]
struct Lane {
    stream: Stream,
    end: Event,
}

impl Link {
    fn new(
        (device, alone): (&Device, bool),
        last_call: &Arc<Event>,
        log: Option<TransferLog>,
        exchange: Option<ExchangeLink>,
        lanes: usize,
    ) -> Result<Self> {
        let lane = |_| Ok::<_, Error>(Lane { stream: device.transfer_stream()?, end: Event::new(device)? });
        Ok(Self {
            exchange,
            lanes: (0..lanes.max(1)).map(lane).collect::<Result<_>>()?,
            begin: Event::new(device)?,
            done: alone.then(|| Event::new(device)).transpose()?,
            turn: Event::new(device)?,
            last_call: Arc::clone(last_call),
            log,
        })
    }

    /// One for each rank of this process, on which a call moves at most `chunks` chunks, over so many lanes: `lanes(rank)`.
    pub(crate) fn all(
        members: &Members,
        chunks: usize,
        lanes: impl Fn(usize) -> usize,
    ) -> Result<PerRank<Self>> {
        let Members { devices, faults, last_calls, .. } = members;
        let (ranks, reach) = (members.local_ranks(), members.space.reach());
        if [devices.ranks(), faults.ranks(), last_calls.ranks()].iter().any(|of| *of != ranks) {
            let [devices, logs, events] =
                [devices.ranks(), faults.ranks(), last_calls.ranks()].map(|of| of.len());
            return Err(Error::IncompleteMembers { devices, logs, events });
        }
        let (reached, world_size) = (reach.world_size(), members.world_size());
        if reached != world_size {
            return Err(Error::WrongReach { reached, world_size });
        }
        PerRank::try_new(ranks, |rank| {
            let device = &devices[rank];
            let log = members.trace.then(|| TransferLog::new(device, chunks)).transpose()?;
            let exchange = match members.exchanges.get(rank) {
                _ if reach.is_complete() => None,
                Some(Some(exchange)) => Some(ExchangeLink::new(device, exchange, &faults[rank])?),
                _ => return Err(Error::NoExchange { rank }),
            };
            // On the host nothing is won. Ranks that share a GPU share its queues: there no stream is to wait that need not.
            let ordinal = |device: &Device| device.as_cuda().map(|gpu| gpu.ordinal());
            let alone = ordinal(device).is_some()
                && devices.iter().filter(|other| ordinal(other) == ordinal(device)).count() == 1;
            Self::new((device, alone), &last_calls[rank], log, exchange, lanes(rank))
        })
    }

    /// A call may come on another stream than the rank's call before it: it begins after that one's end.
    pub(crate) fn follow_previous(&self, compute: &Stream) -> Result<()> {
        Ok(compute.wait(&self.last_call)?)
    }

    /// The stream of a lane; one that there is no stream for goes over the first.
    pub(crate) fn lane(&self, lane: usize) -> &Stream {
        &self.lanes.get(lane).unwrap_or(&self.lanes[0]).stream
    }

    /// `stream` goes on only when `lane` has done what it was given so far.
    pub(crate) fn follow(&self, stream: &Stream, lane: usize) -> Result<()> {
        self.lane(lane).record(&self.turn)?;
        Ok(stream.wait(&self.turn)?)
    }

    /// Transfers from here on see what `compute` has done so far.
    pub(crate) fn fork(&self, compute: &Stream) -> Result<()> {
        self.fork_exchange(compute)?; // records the same event
        if self.exchange.is_none() {
            compute.record(&self.begin)?;
        }
        Ok(self.lanes.iter().try_for_each(|lane| lane.stream.wait(&self.begin))?)
    }

    /// The same, of what is sent to ranks that cannot be addressed, and received from them, only.
    pub(crate) fn fork_exchange(&self, compute: &Stream) -> Result<()> {
        if let Some(exchange) = &self.exchange {
            compute.record(&self.begin)?;
            exchange.stream.wait(&self.begin)?;
        }
        Ok(())
    }

    /// Marks the end of this call's transfers.
    pub(crate) fn end(&self) -> Result<()> {
        if let Some(exchange) = &self.exchange {
            exchange.stream.record(&exchange.end)?;
        }
        Ok(self.lanes.iter().try_for_each(|lane| lane.stream.record(&lane.end))?)
    }

    /// `compute` goes on only after this call's transfers.
    pub(crate) fn join(&self, compute: &Stream) -> Result<()> {
        if let Some(exchange) = &self.exchange {
            compute.wait(&exchange.end)?;
        }
        Ok(self.lanes.iter().try_for_each(|lane| compute.wait(&lane.end))?)
    }

    /// Acknowledges: sets `words` to `epoch` when `compute` has done what it was given so far. On a GPU that no other rank of this process
    /// has, the first lane does it, behind this call's transfers, which wait for nothing that comes after this call: written by
    /// `compute` itself, the words would hold it up for 3 µs (H200), until what it wrote before is visible to all.
    ///
    /// # Safety
    /// The words live until the transfer streams have ended.
    pub(crate) unsafe fn raise_after(
        &self,
        compute: &Stream,
        words: impl Iterator<Item = Address>,
        epoch: u32,
    ) -> Result<()> {
        let Some(done) = &self.done else {
            // SAFETY: the caller's promise.
            return unsafe { raise_words(compute, words, epoch) };
        };
        compute.record(done)?;
        let lane = self.lane(0);
        lane.wait(done)?;
        // SAFETY: the caller's promise.
        unsafe { raise_words(lane, words, epoch) }
    }

    /// Marks the end of the call on `compute`.
    pub(crate) fn release(&self, compute: &Stream) -> Result<()> {
        Ok(compute.record(&self.last_call)?)
    }

    /// Waits on this thread for all calls and transfers to end: memory may be freed afterwards.
    pub(crate) fn settle(&self) {
        let streams = self.lanes.iter().map(|lane| &lane.stream);
        let streams = streams.chain(self.exchange.iter().map(|exchange| &exchange.stream));
        for ended in std::iter::once(self.last_call.synchronize()).chain(streams.map(Stream::synchronize)) {
            if let Err(error) = ended {
                tracing::warn!(%error, "transfers ended with an error");
            }
        }
    }
}

pub(crate) fn check_rank(rank: usize, world_size: usize) -> Result<()> {
    if rank < world_size { Ok(()) } else { Err(Error::RankOutOfRange { rank, world_size }) }
}

/// What is kept for `rank`, if it lives in this process.
pub(crate) fn here<T>(ranks: &PerRank<T>, rank: usize, world_size: usize) -> Result<&T> {
    check_rank(rank, world_size)?;
    ranks.get(rank).ok_or(Error::NotHere { rank })
}

/// A row of signals with one word per peer, at the same place in every rank's array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerWords {
    pub(crate) first: usize,
}

impl PeerWords {
    /// `rank`'s word that `peer` raises.
    pub(crate) fn word(self, signals: &SymmetricSignals, rank: usize, peer: usize) -> Address {
        signals.word(rank, self.first + peer)
    }

    /// `rank` waits for the words of all `peers`.
    pub(crate) fn wait_point(
        self,
        signals: &SymmetricSignals,
        log: &Arc<FaultLog>,
        op: u32,
        rank: usize,
        peers: impl Iterator<Item = usize>,
    ) -> Result<Arc<WaitPoint>> {
        let words = peers.map(|peer| self.wait(signals, rank, peer)).collect();
        Ok(log.wait_point(op, words)?)
    }

    fn wait(self, signals: &SymmetricSignals, rank: usize, peer: usize) -> (Address, WaitSite) {
        (self.word(signals, rank, peer), stream_site(peer, self.first + peer))
    }

    /// `rank` waits for the word of one peer at a time: a point for each.
    pub(crate) fn wait_points(
        self,
        signals: &SymmetricSignals,
        log: &Arc<FaultLog>,
        op: u32,
        rank: usize,
        world_size: usize,
    ) -> Result<Vec<Arc<WaitPoint>>> {
        let of_peer = |peer| vec![self.wait(signals, rank, peer)];
        Ok(log.wait_points(op, (0..world_size).map(of_peer).collect())?)
    }

    /// `rank` raises its word at each of `peers`.
    ///
    /// # Safety
    /// The signals live until `stream` has done this.
    pub(crate) unsafe fn raise(
        self,
        signals: &SymmetricSignals,
        stream: &Stream,
        rank: usize,
        peers: impl Iterator<Item = usize>,
        epoch: u32,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { raise_words(stream, self.words(signals, rank, peers), epoch) }
    }

    /// The words that `rank` raises at `peers`.
    pub(crate) fn words(
        self,
        signals: &SymmetricSignals,
        rank: usize,
        peers: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = Address> {
        peers.map(move |peer| self.word(signals, peer, rank))
    }
}

/// A stream waits for signal number `signal`, which `peer` raises.
pub(crate) fn stream_site(peer: usize, signal: usize) -> WaitSite {
    let number = |value| u32::try_from(value).unwrap_or(u32::MAX);
    WaitSite { peer: number(peer), tile: WaitSite::NO_TILE, signal: number(signal) }
}

/// `stream` sets all of `words` to `epoch`, after what it wrote before.
///
/// # Safety
/// The words live until `stream` has done this.
pub(crate) unsafe fn raise_words(
    stream: &Stream,
    words: impl Iterator<Item = Address>,
    epoch: u32,
) -> Result<()> {
    // On the stack: a call allocates nothing. More words than this take several driver calls.
    const BATCH: usize = 64;
    let mut batch = [(Address::NULL, epoch); BATCH];
    let mut count = 0;
    for word in words {
        batch[count].0 = word;
        count += 1;
        if count == BATCH {
            // SAFETY: the caller's promise.
            unsafe { stream.write_values(&batch[..count])? };
            count = 0;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { stream.write_values(&batch[..count]) }.map_err(Error::from)
}
