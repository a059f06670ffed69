//! Shards pushed by copies and by kernel: the same results, call after call. And the kernel by itself.

use crate::data::{Fill, matrix, product};
use crate::run;
use flux::{
    Address, AgGemm, Buffer, DType, Device, End, GemmAr, Group, OpSpec, PathPreference, Placement, Push,
    Taper, Whole,
};
use flux_launch::{Launcher, PushParams, PushPeer};
use flux_memory::{FaultLog, WaitSite};
use half::bf16;
use std::time::Duration;

/// Whole chunks of 16 bytes, shards that end inside a chunk, rows that the kernel cannot take, fewer rows than ranks, none, and
/// shards of many steps of a block, and chunks that are finer at one end. One operation makes calls of several sizes.
pub fn check(world_size: usize, group: &dyn Fn(usize) -> Group) {
    let group = group(world_size);
    let finer = Taper::towards(End::Last, [3, 2, 1], 8);
    for (n, k, max_m, chunk_rows, taper) in [
        (24, 8, 41, Some(1), None),
        (16, 72, 333, Some(10), None),
        (40, 20, 70, Some(3), None),
        (64, 520, 700, None, None),
        (8, 1032, 500, Some(64), None),
        (16, 72, 333, Some(64), Some(finer)),
    ] {
        let (a, b) = (matrix::<bf16>(max_m * k, Fill::Integers, 3), matrix::<bf16>(n * k, Fill::Integers, 4));
        let reference = product(&a, &b, max_m, n, k);
        for path in [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked] {
            for push in [Push::Auto, Push::Copies, Push::Kernel] {
                let mut spec = OpSpec::new(n, k, max_m, DType::Bf16);
                (spec.path, spec.push, spec.chunk_rows, spec.taper) = (path, push, chunk_rows, taper);
                let gathered = AgGemm::new(&group, spec.clone()).unwrap();
                spec.one_shot_rows = Some(0);
                let reduced = GemmAr::new(&group, spec).unwrap();
                for m in [max_m, max_m / 3, 1, 0, max_m - 1, max_m] {
                    let outcomes = [
                        run::ag_gemm(&group, &gathered, m, &a[..m * k], &b),
                        run::gemm_ar(&group, &reduced, m, &a[..m * k], &b),
                    ];
                    for outcome in outcomes {
                        let c = outcome.unwrap().c;
                        let same = c
                            .iter()
                            .zip(&reference)
                            .all(|(c, r)| f64::from(*c) == f64::from(bf16::from_f64(*r)));
                        assert!(
                            same && c.len() == m * n,
                            "{world_size} ranks, m {m} of {max_m}, n {n}, k {k}, {path:?}, {push}"
                        );
                    }
                }
            }
        }
    }
}

/// A GEMM that fills the GPU of each rank, several calls one behind the other: the same bits whether copies or a kernel are to
/// push. A push that needs an SM would not find one, and the calls would fail when the wait budget has run out.
pub fn check_beside_full_gpus(group: &Group) {
    let (m, k, n) = (8192, 256, 1024 * group.world_size());
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 5), matrix::<bf16>(n * k, Fill::Integers, 6));
    let [copied, pushed] = [Push::Copies, Push::Kernel].map(|push| {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.push) = (PathPreference::Fused, push);
        let op = AgGemm::new(group, spec).unwrap();
        let whole = Whole::place(group, &op, &a, &b, m).unwrap();
        for _ in 0..20 {
            whole.enqueue().unwrap();
        }
        whole.result().unwrap()
    });
    assert!(copied == pushed, "{} ranks", group.world_size());
}

/// One rank of `sharing` on `device` pushes to three peers by kernel, for chunks of one vector and of many, shards that end
/// inside a chunk, one chunk and several. A second stream reads each chunk as soon as its signal is up: what it sees is
/// complete. Twice: the counters are back at 0.
pub fn check_kernel(device: &Device, sharing: usize) {
    for (bytes, chunk_bytes) in
        [(16, 16), (64, 16), (4096 + 16, 1024), (100_000, 16_384), (3 << 20, 1 << 20), (1_000_000, 700_000)]
    {
        for by_shard in [0, 1] {
            check_push(device, sharing, (bytes, chunk_bytes), by_shard);
        }
    }
}

fn check_push(device: &Device, sharing: usize, (bytes, chunk_bytes): (usize, usize), by_shard: u32) {
    const PEERS: usize = 3;
    const WORD: usize = size_of::<u32>();
    let what = format!("{bytes} bytes in chunks of {chunk_bytes}, {by_shard}, {sharing} ranks");
    let launcher = Launcher::sharing(&vec![device.clone(); sharing], None).unwrap().remove(0);
    launcher.prepare_push().unwrap();
    let (stream, reader) = (device.transfer_stream().unwrap(), device.stream().unwrap());
    let log = FaultLog::new(device, 0, Duration::from_secs(5)).unwrap();
    let allocate = |bytes: usize| Buffer::allocate(device, bytes, Placement::Device).unwrap();
    let (chunks, offset) = (bytes.div_ceil(chunk_bytes), 48);
    let size = offset + bytes + 16; // with a guard on either side
    let (shard, gathered, read) =
        (allocate(bytes), allocate(PEERS * size.next_multiple_of(16)), allocate(PEERS * bytes));
    // Of each peer: the chunks' signals, and the shard's.
    let (words, counters) = (allocate(PEERS * (chunks + 1) * WORD), allocate(PEERS * chunks * WORD));
    let at = |peer: usize| gathered.address().add(peer * size.next_multiple_of(16));
    let word = |peer: usize, index: usize| words.address().add((peer * (chunks + 1) + index) * WORD);
    let entries: Vec<_> = (0..PEERS)
        .map(|peer| PushPeer { gathered: at(peer), signals: word(peer, 0), arrived: word(peer, chunks) })
        .collect();
    let table = allocate(size_of_val(&*entries));
    table.upload(&stream, 0, bytemuck::cast_slice(&entries)).unwrap();
    words.upload(&stream, 0, &vec![0; words.bytes()]).unwrap();
    counters.upload(&stream, 0, &vec![0; counters.bytes()]).unwrap();
    let signals: Vec<Vec<(Address, WaitSite)>> = (0..PEERS)
        .flat_map(|peer| (0..chunks).map(move |chunk| (peer, chunk)))
        .map(|(peer, chunk)| {
            let word = word(peer, if by_shard == 0 { chunk } else { chunks });
            vec![(word, WaitSite { peer: 0, tile: WaitSite::NO_TILE, signal: 0 })]
        })
        .collect();
    let points = log.wait_points(0, signals).unwrap();
    for epoch in 1..=2_u32 {
        let data: Vec<u8> =
            (0..bytes).map(|i| (i * 7 + i / 251 + epoch as usize * 13).to_le_bytes()[0]).collect();
        shard.upload(&stream, 0, &data).unwrap();
        gathered.upload(&stream, 0, &vec![0xee; gathered.bytes()]).unwrap();
        for (index, point) in points.iter().enumerate() {
            let (peer, begin) = (index / chunks, index % chunks * chunk_bytes);
            let (to, from) = (read.address().add(peer * bytes + begin), at(peer).add(offset + begin));
            // SAFETY: everything outlives the streams' work, which the download waits for.
            unsafe {
                reader.wait_values(point, epoch).unwrap();
                reader.copy(to, from, chunk_bytes.min(bytes - begin)).unwrap();
            }
        }
        let params = PushParams {
            shard: shard.address(),
            offset: offset as u64,
            bytes: bytes as u64,
            chunk_bytes: chunk_bytes as u64,
            peers: table.address(),
            counters: counters.address(),
            peer_count: u32::try_from(PEERS).unwrap(),
            chunks: u32::try_from(chunks).unwrap(),
            epoch,
            by_shard,
        };
        assert!(params.is_aligned());
        // SAFETY: as above; the parameters say what there is.
        unsafe { launcher.push(&stream, &params).unwrap() };
        stream.synchronize().unwrap();
        let mut seen = vec![0; PEERS * bytes];
        read.download(&reader, 0, &mut seen).unwrap();
        assert!(log.fault().is_none(), "{what}: {:?}", log.fault());
        assert!(seen.chunks(bytes).all(|seen| seen == data), "{what}: a signal came before its data");
        let mut all = vec![0; gathered.bytes()];
        gathered.download(&stream, 0, &mut all).unwrap();
        for written in all.chunks(size.next_multiple_of(16)) {
            let guards = written[..offset].iter().chain(&written[offset + bytes..]);
            assert!(
                written[offset..offset + bytes] == data && guards.into_iter().all(|&byte| byte == 0xee),
                "{what}"
            );
        }
        let (mut counted, mut raised) = (vec![0_u32; PEERS * chunks], vec![0_u32; PEERS * (chunks + 1)]);
        counters.download(&stream, 0, bytemuck::cast_slice_mut(&mut counted)).unwrap();
        words.download(&stream, 0, bytemuck::cast_slice_mut(&mut raised)).unwrap();
        assert!(counted.iter().all(|&count| count == 0), "{what}");
        for raised in raised.chunks(chunks + 1) {
            let (of_chunks, of_shard) = if by_shard == 0 { (epoch, 0) } else { (0, epoch) };
            assert!(
                raised[..chunks].iter().all(|&word| word == of_chunks) && raised[chunks] == of_shard,
                "{what}"
            );
        }
    }
}
