//! NCCL's own collectives beside what they should give: in one process, and among processes. Where there are fewer GPUs than ranks,
//! processes share them, which takes NCCL 2.30 or newer; ranks of one process cannot. The tests fail where there is no NCCL.

use flux::{
    Address, BackendChoice, Buffer, Collectives, DType, Device, Group, GroupConfig, Placement, Stream,
};
use flux_tests::launch::{PART, check_passed};
use half::{bf16, f16};
use std::time::{Duration, Instant};

const THIS: &str = "collectives::rank";

/// Several ranks on one GPU are something that NCCL has to be asked for.
const SHARE_GPUS: &str = "export NCCL_MULTI_RANK_GPU_ENABLE=1;";

/// Elements of a rank's shard: small, with a rest; and more than one chunk of NCCL's.
const SHARDS: [usize; 3] = [1, 1000, 300_001];

/// What the processes run: the part that they are told.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Cuda;
    match std::env::var(PART).unwrap().as_str() {
        "late" => {
            config.wait_budget = Duration::from_secs(2);
            late(&Group::from_env_with(config).unwrap());
        }
        _ => check_all(&Group::from_env_with(config).unwrap()),
    }
}

/// What rank `rank` brings as element `index`: small integers, whose sums are exact in every type.
fn value(rank: usize, index: usize) -> u8 {
    u8::try_from((index * 7 + rank * 13) % 11).unwrap()
}

/// Memory of each rank of this process, and its streams.
struct Places {
    buffers: Vec<[Buffer; 2]>,
    streams: Vec<Stream>,
}

impl Places {
    /// Room for so many bytes to read and to write; what is read is `fill(rank)`, what is written all ones before.
    fn new(group: &Group, [from, to]: [usize; 2], fill: impl Fn(usize) -> Vec<u8>) -> Self {
        let (mut buffers, mut streams) = (Vec::new(), Vec::new());
        for rank in group.local_ranks() {
            let allocate =
                |bytes| Buffer::allocate(group.device(rank).unwrap(), bytes, Placement::Device).unwrap();
            let (own, stream) = ([allocate(from), allocate(to)], group.stream(rank).unwrap());
            own[0].upload(&stream, 0, &fill(rank)).unwrap();
            own[1].upload(&stream, 0, &vec![0xff; to]).unwrap();
            buffers.push(own);
            streams.push(stream);
        }
        Self { buffers, streams }
    }

    fn run(&self, call: impl FnOnce(&[(Address, Address)], &[&Stream])) -> Vec<Vec<u8>> {
        let places: Vec<_> = self.buffers.iter().map(|[from, to]| (from.address(), to.address())).collect();
        call(&places, &self.streams.iter().collect::<Vec<_>>());
        let read = |([_, to], stream): (&[Buffer; 2], &Stream)| {
            let mut bytes = vec![0; to.bytes()];
            to.download(stream, 0, &mut bytes).unwrap();
            bytes
        };
        self.buffers.iter().zip(&self.streams).map(read).collect()
    }
}

fn encode(dtype: DType, values: impl Iterator<Item = u8>) -> Vec<u8> {
    values
        .flat_map(|value| match dtype {
            DType::Bf16 => bf16::from(value).to_le_bytes(),
            _ => f16::from(value).to_le_bytes(),
        })
        .collect()
}

fn check_all(group: &Group) {
    let collectives = group.collectives().unwrap();
    let world_size = group.world_size();
    let sum = |index| (0..world_size).map(|rank| value(rank, index)).sum::<u8>();
    for shard in SHARDS {
        let all = shard * world_size;
        let gathered = Places::new(group, [shard, all], |rank| (0..shard).map(|i| value(rank, i)).collect());
        let expected: Vec<u8> =
            (0..world_size).flat_map(|rank| (0..shard).map(move |i| value(rank, i))).collect();
        // SAFETY: the buffers are of these sizes, and live until they have been read.
        let found = gathered.run(|places, streams| unsafe {
            collectives.all_gather(shard, places, streams).unwrap();
        });
        assert!(found.iter().all(|found| *found == expected), "all-gather of {shard}");
        for dtype in [DType::Bf16, DType::F16] {
            let brings = |rank| encode(dtype, (0..all).map(|index| value(rank, index)));
            let scattered = Places::new(group, [2 * all, 2 * shard], brings);
            // SAFETY: as above.
            let found = scattered.run(|places, streams| unsafe {
                collectives.reduce_scatter(dtype, shard, places, streams).unwrap();
            });
            for (rank, found) in group.local_ranks().zip(found) {
                let own = rank * shard..(rank + 1) * shard;
                assert!(
                    found == encode(dtype, own.map(sum)),
                    "reduce-scatter of {shard} {dtype}, rank {rank}"
                );
            }
            let reduced = Places::new(group, [2 * all, 2 * all], brings);
            // SAFETY: as above.
            let found = reduced.run(|places, streams| unsafe {
                collectives.all_reduce(dtype, all, places, streams).unwrap();
            });
            let expected = encode(dtype, (0..all).map(sum));
            assert!(found.iter().all(|found| *found == expected), "all-reduce of {all} {dtype}");
        }
    }
    // What is refused leaves no trace.
    let none: [&Stream; 0] = [];
    // SAFETY: nothing is enqueued.
    unsafe {
        collectives.all_gather(1, &[], &none).unwrap_err();
        collectives.all_reduce(DType::E4m3, 1, &[], &none).unwrap_err();
    }
    group.barrier().unwrap();
    collectives.check().unwrap();
    group.check().unwrap();
}

/// A rank that makes no call is an error of the other within the budget; its group goes on.
fn late(group: &Group) {
    let collectives: Collectives = group.collectives().unwrap();
    if group.local_ranks().start == 1 {
        std::thread::sleep(Duration::from_secs(8));
    } else {
        let begin = Instant::now();
        let places = Places::new(group, [4, 4], |_| vec![0; 4]);
        // SAFETY: the buffers are of this size, and live until they have been read.
        places.run(|places, streams| unsafe {
            let _refused = collectives.all_reduce(DType::Bf16, 2, places, streams);
        });
        let error = collectives.check().unwrap_err().to_string();
        assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
        assert!(error.contains("2s"), "{error}");
        group.check().unwrap();
    }
    group.barrier().unwrap();
}

#[test]
fn two_ranks_of_one_process() {
    let gpus = Device::cuda_count().unwrap();
    assert!(gpus >= 2, "in one process NCCL wants a GPU for each rank: 2, and there are {gpus}");
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Cuda;
    check_all(&Group::local_with(2, config).unwrap());
}

#[test]
fn two_processes() {
    check_passed(SHARE_GPUS, 2, THIS, "all");
}

#[test]
fn a_process_that_does_not_come_is_an_error_in_time() {
    check_passed(SHARE_GPUS, 2, THIS, "late");
}

/// In one process, ranks need a GPU each; the error says so, and the group goes on.
#[test]
fn ranks_of_one_process_do_not_share_a_gpu() {
    let mut config = GroupConfig::default();
    (config.backend, config.gpu) = (BackendChoice::Cuda, Some(0));
    let group = Group::local_with(2, config).unwrap();
    let error = group.collectives().unwrap_err().to_string();
    assert!(error.contains("share a GPU"), "{error}");
    group.check().unwrap();
}
