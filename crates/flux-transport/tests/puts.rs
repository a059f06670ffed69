//! Ranks that put into memory of peers that they have no address of: here into arenas of one process, by threads in the place of
//! processes. Nothing but those arenas is put from.

use flux_memory::{
    Address, Bootstrap, BootstrapError, Buffer, Device, FaultLog, Peers, PerRank, Placement, Reach, Sharing,
    Stream, SymmetricBuffer, SymmetricHeap, SymmetricSpace,
};
use flux_swizzle::{PanelCut, Pattern, Shards};
use flux_transport::{
    AllGather, AllGatherSpec, Awaited, Direction, Members, Message, NodeSum, PeerCopy, Put, PutExchange,
    Result, Rows, Scatter, ScatterSpec, SumSlots, Taper,
};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const ARENA_BYTES: usize = 1 << 20;

/// Where the ranks meet, and their arenas.
#[derive(Debug)]
struct Machine {
    said: Mutex<Vec<Vec<u8>>>,
    barrier: Barrier,
    arenas: Vec<Buffer>,
}

#[derive(Debug)]
struct Rank {
    machine: Arc<Machine>,
    rank: usize,
    reach: Reach,
    used: AtomicUsize,
    puts: AtomicUsize,
}

impl Bootstrap for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.machine.arenas.len()
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.machine.said.lock().unwrap()[self.rank] = bytes.to_vec();
        self.machine.barrier.wait();
        let heard = self.machine.said.lock().unwrap().clone();
        self.machine.barrier.wait();
        Ok(heard)
    }
}

impl Rank {
    fn base(&self, rank: usize) -> u64 {
        self.machine.arenas[rank].address().0.next_multiple_of(256)
    }

    /// The place at `peer` that corresponds to `own`.
    fn at(&self, own: Address, peer: usize) -> Address {
        let offset = own.0.checked_sub(self.base(self.rank)).expect("symmetric memory");
        assert!(offset < ARENA_BYTES as u64, "symmetric memory");
        Address(self.base(peer) + offset)
    }
}

impl SymmetricHeap for Rank {
    fn allocate(&self, bytes: usize) -> flux_memory::Result<Address> {
        let offset = self.used.fetch_add(bytes.next_multiple_of(256), Ordering::Relaxed);
        assert!(offset + bytes + 256 <= ARENA_BYTES);
        Ok(Address(self.base(self.rank)).add(offset))
    }

    fn address(&self, own: Address, peer: usize) -> Address {
        if self.reach.has(self.rank, peer) { self.at(own, peer) } else { Address::NULL }
    }

    unsafe fn free(&self, _: Address) -> flux_memory::Result<()> {
        Ok(())
    }
}

impl Put for Rank {
    unsafe fn put(&self, stream: &Stream, message: &Message, signal: Address, value: u32) -> Result<()> {
        let _own = self.at(message.memory, self.rank);
        self.puts.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the arenas outlive all.
        unsafe {
            stream.copy(self.at(message.place, message.peer), message.memory, message.bytes)?;
            self.signal(stream, message.peer, signal, value)
        }
    }

    unsafe fn signal(&self, stream: &Stream, peer: usize, signal: Address, value: u32) -> Result<()> {
        assert!(!self.reach.has(self.rank, peer) && signal.is_aligned_to(8));
        // SAFETY: as above.
        Ok(unsafe { stream.write_values(&[(self.at(signal, peer), value)]) }?)
    }
}

/// Runs `body` on a thread for each rank of so many nodes.
fn on_nodes(world_size: usize, nodes: usize, body: impl Fn(&Arc<Rank>, &Members) + Sync) {
    let arena = |_| Buffer::allocate(&Device::host(), ARENA_BYTES + 256, Placement::Device).unwrap();
    let machine = Arc::new(Machine {
        said: Mutex::new(vec![Vec::new(); world_size]),
        barrier: Barrier::new(world_size),
        arenas: (0..world_size).map(arena).collect(),
    });
    let run = |rank: usize| {
        let (machine, reach) = (Arc::clone(&machine), Reach::split(world_size, nodes));
        let (used, puts) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let own = Arc::new(Rank { machine, rank, reach, used, puts });
        let peers = Peers::connect(Arc::<Rank>::clone(&own)).unwrap();
        let device = Device::host();
        let space = SymmetricSpace::among(&peers, &device, Sharing::Auto).unwrap();
        let space = space.with_reach(own.reach.clone()).with_heap(Arc::<Rank>::clone(&own));
        let bytes = PutExchange::bytes(world_size);
        let words = SymmetricBuffer::allocate(&space, bytes, Placement::Device).unwrap();
        let log = FaultLog::new(&device, u32::try_from(rank).unwrap(), Duration::from_secs(10)).unwrap();
        let place = (rank, world_size);
        let exchange = PutExchange::new(Arc::<Rank>::clone(&own), &device, place, words, &log).unwrap();
        let one = |value| PerRank::new(rank..rank + 1, |_| Device::clone(value));
        let faults = PerRank::new(rank..rank + 1, |_| Arc::clone(&log));
        let mut members = Members::of(space, one(&device), faults).unwrap();
        let exchange: Arc<dyn flux_transport::Exchange> = Arc::new(exchange);
        members.exchanges = PerRank::new(rank..rank + 1, |_| Some(Arc::clone(&exchange)));
        drop(exchange);
        body(&own, &members);
        assert!(!log.has_given_up(), "rank {rank} of {world_size} on {nodes} nodes: {:?}", log.fault());
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

const NODES: [(usize, usize); 5] = [(2, 2), (4, 2), (5, 2), (3, 3), (6, 3)];

/// Rows, and what is beside them, call after call, pushed and pulled within nodes, in one level and in two.
#[test]
fn rows_are_put_to_all_nodes() {
    for (world_size, nodes) in NODES {
        let sizes: Vec<_> = (0..nodes).map(|node| (world_size + nodes - 1 - node) / nodes).collect();
        for direction in [Direction::Push, Direction::Pull] {
            for pattern in [Pattern::full_mesh(world_size), Pattern::islands(&sizes)] {
                on_nodes(world_size, nodes, |own, members| gather(own, members, &pattern, direction));
            }
        }
    }
}

fn gather(own: &Rank, members: &Members, pattern: &Pattern, direction: Direction) {
    let (rank, world_size) = (own.rank, members.world_size());
    let spec = AllGatherSpec {
        max_rows: 64,
        row_bytes: 4,
        side_bytes: 2,
        chunk_rows: 3.into(),
        taper: Taper::NONE,
        direction,
        pattern: pattern.clone(),
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    };
    let gather = AllGather::new(Box::new(PeerCopy), members, spec).unwrap();
    let stream = Device::host().stream().unwrap();
    let place = |bytes: &[u8]| {
        let buffer = Buffer::allocate(&Device::host(), bytes.len(), Placement::Device).unwrap();
        buffer.upload(&stream, 0, bytes).unwrap();
        buffer
    };
    for (epoch, rows) in [(1, 64), (2, 2), (3, 41), (4, 0), (5, 60)] {
        let chunks = gather.chunks(rank, rows).unwrap();
        let value = |row: usize| (u32::try_from(row).unwrap() << 8 | epoch).to_ne_bytes();
        let side = |row: usize| (u16::try_from(row).unwrap() ^ 0x5555).to_ne_bytes();
        let range = chunks.shards().range(rank);
        let shard = place(&range.clone().flat_map(value).collect::<Vec<_>>());
        let beside = place(&range.flat_map(side).collect::<Vec<_>>());
        let given = Rows { rows: shard.address(), side: Some(beside.address()) };
        let (mut all, mut all_beside) = (vec![0; rows * 4], vec![0; rows * 2]);
        // SAFETY: the shard outlives the call, and all ranks make the same one.
        unsafe {
            gather.stage(rank, epoch, rows, given, false, &stream).unwrap();
            gather.transfer(rank, epoch, rows, given, Awaited::Shards).unwrap();
            gather.wait_for_all(rank, epoch, &stream).unwrap();
            stream.download(&mut all, gather.gathered(rank)).unwrap();
            stream.download(&mut all_beside, gather.gathered_side(rank)).unwrap();
            gather.release(rank, epoch, &stream).unwrap();
            stream.synchronize().unwrap(); // the shard has been sent
        }
        assert_eq!(
            all,
            (0..rows).flat_map(value).collect::<Vec<_>>(),
            "rank {rank} of {world_size}, {epoch}"
        );
        assert_eq!(all_beside, (0..rows).flat_map(side).collect::<Vec<_>>(), "rank {rank}, call {epoch}");
    }
    gather.settle();
    assert!(own.puts.load(Ordering::Relaxed) > 0);
}

const ROW_BYTES: usize = 16;
const BLOCK_ROWS: usize = 4;

fn scatter(members: &Members, puts: bool) -> Scatter {
    scatter_in_levels(members, puts, None)
}

fn scatter_in_levels(members: &Members, puts: bool, sum_in_nodes: Option<Arc<dyn SumSlots>>) -> Scatter {
    let spec = ScatterSpec {
        max_rows: 70,
        row_bytes: ROW_BYTES,
        chunk_rows: 5.into(),
        taper: Taper::NONE,
        panels: PanelCut::NONE,
        block_rows: BLOCK_ROWS,
        with_partial: true,
        relayed: false,
        puts,
        sum_in_nodes,
        direction: Direction::Push,
        pattern: Pattern::full_mesh(members.world_size()),
        placement: Placement::Device,
        op: 0,
        signal_loss: None,
    };
    Scatter::new(Box::new(PeerCopy), members, spec).unwrap()
}

/// What `source` has for row `row` of all.
fn row_of(source: usize, row: usize, epoch: u32) -> [u8; ROW_BYTES] {
    let mut bytes = [u8::try_from(source).unwrap(); ROW_BYTES];
    bytes[..8].copy_from_slice(&(row as u64).to_ne_bytes());
    bytes[8..12].copy_from_slice(&epoch.to_ne_bytes());
    bytes
}

/// `rank`'s part of call `epoch`: its partial rows, on their way.
fn send_partial(scatter: &Scatter, rank: usize, (rows, epoch): (usize, u32), stream: &Stream) {
    let partial: Vec<_> = (0..rows).flat_map(|row| row_of(rank, row, epoch)).collect();
    // SAFETY: all ranks make the same calls.
    unsafe {
        scatter.begin(rank, stream).unwrap();
        stream.upload(scatter.partial(rank), &partial).unwrap();
        scatter.stage(rank, epoch, stream).unwrap();
        scatter.transfer(rank, epoch, rows, stream).unwrap();
    }
}

/// Whole shards, as of calls whose GEMM has ended.
#[test]
fn partial_rows_are_put_to_their_owners() {
    for (world_size, nodes) in NODES {
        on_nodes(world_size, nodes, |own, members| {
            let (rank, scatter) = (own.rank, scatter(members, false));
            let stream = Device::host().stream().unwrap();
            for (epoch, rows) in [(1, 70), (2, 1), (3, 33)] {
                send_partial(&scatter, rank, (rows, epoch), &stream);
                let arrived = |source| scatter.arrived(rank).add(source * size_of::<u32>());
                (0..world_size).for_each(|source| await_word(arrived(source), epoch));
                check_slots(&scatter, rank, world_size, (rows, epoch), &stream);
            }
            scatter.settle();
        });
    }
}

/// Adds bytes.
#[derive(Debug)]
struct AddBytes;

impl SumSlots for AddBytes {
    unsafe fn sum(&self, stream: &Stream, sum: &NodeSum) -> Result<()> {
        let (Stream::Host(stream), sum) = (stream, *sum) else { panic!("only on the host") };
        let add = move || {
            let bytes = sum.rows * ROW_BYTES;
            let mut all = vec![0_u8; bytes];
            for source in 0..sum.sources {
                let slot = sum.slots.add(source * sum.slot_rows * ROW_BYTES);
                // SAFETY: the caller's promise: nobody writes to the slots now.
                let slot = unsafe { std::slice::from_raw_parts(slot.as_ptr::<u8>(), bytes) };
                all.iter_mut().zip(slot).for_each(|(sum, part)| *sum = sum.wrapping_add(*part));
            }
            // SAFETY: nor does anybody use what it goes to.
            unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), sum.out.as_ptr(), bytes) };
        };
        Ok(stream.launch(add)?)
    }
}

/// What a node has for an owner on another one is put there as one sum, call after call.
#[test]
fn sums_of_nodes_are_put_to_their_owners() {
    for (world_size, nodes) in [(4, 2), (6, 3), (6, 2)] {
        on_nodes(world_size, nodes, |own, members| {
            let (rank, per_node) = (own.rank, world_size / nodes);
            let scatter = scatter_in_levels(members, true, Some(Arc::new(AddBytes)));
            assert!(
                scatter.has_two_levels() && (0..world_size).all(|to| scatter.put_target(rank, to).is_none())
            );
            let stream = Device::host().stream().unwrap();
            for (epoch, rows) in [(1, 70), (2, 1), (3, 33), (4, 70)] {
                send_partial(&scatter, rank, (rows, epoch), &stream);
                let range = shard(world_size, rank, rows);
                for (slot, source) in scatter.source_ranks(rank).enumerate() {
                    await_word(scatter.arrived(rank).add(slot * size_of::<u32>()), epoch);
                    let mut found = vec![0; range.len() * ROW_BYTES];
                    // SAFETY: the slot is of this op.
                    unsafe { stream.download(&mut found, scatter.slot(rank, slot)).unwrap() };
                    let node = source / per_node * per_node..(source / per_node + 1) * per_node;
                    let summed = if node.contains(&rank) { source..source + 1 } else { node };
                    let mut expected = vec![0_u8; found.len()];
                    for source in summed {
                        let part = range.clone().flat_map(|row| row_of(source, row, epoch));
                        expected.iter_mut().zip(part).for_each(|(sum, part)| *sum = sum.wrapping_add(part));
                    }
                    assert_eq!(found, expected, "rank {rank} of {world_size}, slot {slot}, call {epoch}");
                }
                // SAFETY: as above.
                unsafe { scatter.release(rank, epoch, &stream).unwrap() };
            }
            scatter.settle();
            assert!(own.puts.load(Ordering::Relaxed) > 0);
        });
    }
}

/// A GEMM that puts by itself: it waits for each owner's acknowledgement, and puts its blocks of rows in any order.
#[test]
fn tiles_are_put_by_who_computes_them() {
    for (world_size, nodes) in NODES {
        on_nodes(world_size, nodes, |own, members| {
            let (rank, scatter) = (own.rank, scatter(members, true));
            let stream = Device::host().stream().unwrap();
            for (epoch, rows) in [(1, 70), (2, 1), (3, 33), (4, 70)] {
                // SAFETY: all ranks make the same calls.
                unsafe {
                    scatter.begin(rank, &stream).unwrap();
                    scatter.begin_relay(rank, &stream).unwrap();
                    scatter.relay(rank, epoch, rows).unwrap();
                }
                for owner in (1..=world_size).map(|step| (rank + step) % world_size) {
                    compute(own, &scatter, owner, (rows, epoch));
                }
                let blocks = shard(world_size, rank, rows).len().div_ceil(BLOCK_ROWS);
                for source in 0..world_size {
                    for block in 0..blocks {
                        await_word(scatter.block_signals(rank, source).add(block * size_of::<u32>()), epoch);
                    }
                }
                check_slots(&scatter, rank, world_size, (rows, epoch), &stream);
            }
            scatter.settle();
            assert!(own.puts.load(Ordering::Relaxed) > 0);
        });
    }
}

fn shard(world_size: usize, rank: usize, rows: usize) -> std::ops::Range<usize> {
    Shards::new(rows, world_size).unwrap().range(rank)
}

/// What a GEMM does with the tiles for `owner`.
fn compute(own: &Rank, scatter: &Scatter, owner: usize, (rows, epoch): (usize, u32)) {
    let (rank, target) = (own.rank, scatter.target(own.rank, owner));
    let put = scatter.put_target(rank, owner);
    assert_eq!(put.is_some(), !own.reach.has(rank, owner));
    assert!(put.is_none() || !scatter.relays(rank, owner));
    let gates = target.gate.map(|gate| scatter.gates(rank).add(gate * size_of::<u32>()));
    gates.for_each(|gate| await_word(gate, epoch - 1));
    let (stream, range) = (Device::host().stream().unwrap(), shard(own.machine.arenas.len(), owner, rows));
    let tiles: Vec<_> = range.clone().flat_map(|row| row_of(rank, row, epoch)).collect();
    // SAFETY: the owner has acknowledged the call before.
    unsafe { stream.upload(target.slot, &tiles).unwrap() };
    for block in (0..range.len().div_ceil(BLOCK_ROWS)).rev() {
        let (first, end) = (block * BLOCK_ROWS, range.len().min((block + 1) * BLOCK_ROWS));
        // SAFETY: as above.
        unsafe {
            match put {
                None => {
                    stream.write_values(&[(target.signals.add(block * size_of::<u32>()), epoch)]).unwrap()
                }
                Some(put) => {
                    let message = Message {
                        peer: owner,
                        memory: target.slot.add(first * ROW_BYTES),
                        place: put.slot.add(first * ROW_BYTES),
                        bytes: (end - first) * ROW_BYTES,
                    };
                    own.put(&stream, &message, put.words.add(block * size_of::<u64>()), epoch).unwrap();
                }
            }
        }
    }
    stream.synchronize().unwrap();
}

/// Every source's rows are in its slot; then they may be overwritten.
fn check_slots(
    scatter: &Scatter,
    rank: usize,
    world_size: usize,
    (rows, epoch): (usize, u32),
    stream: &Stream,
) {
    let range = shard(world_size, rank, rows);
    for source in 0..world_size {
        let mut slot = vec![0; range.len() * ROW_BYTES];
        // SAFETY: the slot is of this op.
        unsafe { stream.download(&mut slot, scatter.slot(rank, source)).unwrap() };
        let expected: Vec<_> = range.clone().flat_map(|row| row_of(source, row, epoch)).collect();
        assert_eq!(slot, expected, "rank {rank} of {world_size} from {source}, call {epoch}");
    }
    // SAFETY: all ranks make the same calls.
    unsafe { scatter.release(rank, epoch, stream).unwrap() };
}

fn await_word(word: Address, wanted: u32) {
    let begin = Instant::now();
    // SAFETY: a word of the operation, which outlives this.
    let word = unsafe { AtomicU32::from_ptr(word.as_ptr()) };
    while !flux_memory::reached(word.load(Ordering::Acquire), wanted) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{wanted} does not come");
        std::thread::yield_now();
    }
}

/// What does not come is an error of whoever waits for it, in time.
#[test]
fn a_rank_that_does_not_take_its_step_is_noticed() {
    on_nodes(2, 2, |own, members| {
        let rank = own.rank;
        let log = FaultLog::new(&Device::host(), 0, Duration::from_millis(50)).unwrap();
        let words =
            SymmetricBuffer::allocate(&members.space, PutExchange::bytes(2), Placement::Device).unwrap();
        let put: Arc<dyn Put> = Arc::<Rank>::clone(own);
        let exchange = PutExchange::new(put, &Device::host(), (rank, 2), words, &log).unwrap();
        if rank == 0 {
            let stream = Device::host().stream().unwrap();
            let memory = Address(own.base(0));
            let message = Message { peer: 1, memory, place: memory, bytes: 8 };
            // SAFETY: the arena outlives this.
            unsafe { flux_transport::Exchange::step(&exchange, &stream, &log, &[], &[message]).unwrap() };
            stream.synchronize().unwrap();
            let fault = log.fault().unwrap();
            assert_eq!((fault.peer, fault.op, fault.wanted), (1, PutExchange::NO_OP, 1));
        }
    });
}
