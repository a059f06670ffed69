//! What is measured is kept, shared, and believed only where it is whole.

use super::*;
use crate::{BackendChoice, DType, GroupConfig};
use proptest::prelude::*;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

fn on_host(world_size: usize, tuning: Option<PathBuf>) -> Group {
    let config = GroupConfig { backend: BackendChoice::Host, tuning, ..GroupConfig::default() };
    Group::local_with(world_size, config).unwrap()
}

fn key(m: usize) -> Key {
    Key {
        gpu: "NVIDIA H200".into(),
        driver: "580.159.04".into(),
        topology: "0123456789abcdef".into(),
        kernels: "fedcba9876543210".into(),
        op: OpKind::GemmRs,
        dtype: "bf16".into(),
        n: 8192,
        k: 28672,
        world_size: 8,
        m,
    }
}

fn plan(path: &str, us: f64) -> Measured {
    Measured {
        path: path.into(),
        one_shot: false,
        direction: "push".into(),
        delivery: (path == "fused").then(|| "relayed".into()),
        chunks_per_shard: 2,
        order: "mesh:0-7".into(),
        tile: (us < 205.0).then(|| "128x256".into()),
        us,
        spread: 0.013,
    }
}

fn some_entry(m: usize) -> Entry {
    Entry::new(key(m), vec![plan("fused", 200.1), plan("unfused", 207.4)])
}

/// Times stand in the file, and would differ; what is decided by them does not.
#[test]
fn tuning_twice_gives_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made for it/tuning.json");
    let spec = OpSpec::new(128, 96, 64, DType::Bf16);
    let mut config = TuneConfig { samples: 3, ..TuneConfig::new(&[64, 33, 5]) };
    let tuned = |op, config: &TuneConfig, group: &Group| {
        let mut last = None;
        let outcomes = tune(group, op, &spec, config, |progress| last = Some(progress)).unwrap();
        let last = last.unwrap();
        assert!(last.done <= last.all && last.m == 64, "{last:?}");
        outcomes
    };
    let group = on_host(2, Some(file.clone()));
    for op in [OpKind::AgGemm, OpKind::GemmRs, OpKind::GemmAr] {
        let outcomes = tuned(op, &config, &group);
        assert_eq!(
            outcomes.iter().map(|of| (of.entry.key().m, of.planned.is_some())).collect::<Vec<_>>(),
            [(8, true), (64, true)]
        );
        assert!(
            outcomes.iter().all(|of| of.entry.is_valid() && of.entry.plans().count() >= 2),
            "{outcomes:?}"
        );
    }
    let first = std::fs::read_to_string(&file).unwrap();
    assert!(first.contains("\"op\": \"gemm-ar\"") && first.ends_with("}\n"), "{first}");
    // By another group, which reads the file.
    let group = on_host(2, Some(file.clone()));
    assert!(tuned(OpKind::AgGemm, &config, &group).iter().all(|of| of.planned.is_none()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), first);
    let op = crate::AgGemm::new(&group, spec.clone()).unwrap();
    let explain = op.explain(64).unwrap();
    assert_eq!(explain.source, crate::PlanSource::Tuned, "{explain}");
    assert_eq!(op.explain(1).unwrap().source, crate::PlanSource::Model);
    // Measured anew, what was decided stays, unless it was wrong.
    config.force = true;
    for of in tuned(OpKind::AgGemm, &config, &group) {
        assert!(of.planned.is_some() && of.entry.is_valid());
    }
    assert!(!folder.path().join("made for it/tuning.json.damaged").exists());
}

#[test]
fn an_operation_may_ask_to_be_measured() {
    let group = on_host(2, None);
    let mut spec = OpSpec::new(64, 64, 128, DType::Bf16);
    spec.tune_rows = vec![128];
    let op = crate::GemmRs::new(&group, spec.clone()).unwrap();
    assert_eq!(op.explain(100).unwrap().source, crate::PlanSource::Tuned);
    spec.tune_rows.clear();
    let other = crate::GemmRs::new(&group, OpSpec { n: 72, ..spec }).unwrap();
    assert_eq!(other.explain(100).unwrap().source, crate::PlanSource::Model);
}

#[test]
fn a_winner_stays_unless_it_is_surely_slower() {
    // Samples rise and fall together; beside that, each by itself.
    let timing = |us: f64, noise: f64| {
        let sample =
            |index: usize| us * [1.0, 2.0, 1.3][index % 3] * (1.0 + noise * [0.0, 1.0, -1.0, 0.5][index % 4]);
        let all: Vec<f64> = (0..16).map(sample).collect();
        Timing::of(all, (0..16).map(|index| [1.0, 2.0, 1.3][index % 3]).collect())
    };
    for (timings, incumbent, expected) in [
        (vec![timing(100.0, 0.0), timing(99.0, 0.0)], 0, 1),
        (vec![timing(100.0, 0.0), timing(100.0, 0.0)], 0, 0),
        (vec![timing(100.0, 0.0), timing(100.0, 0.0)], 1, 1),
        (vec![timing(100.0, 0.0), timing(98.0, 0.1)], 0, 0),
        (vec![timing(100.0, 0.0), timing(70.0, 0.1)], 0, 1),
        (vec![timing(98.0, 0.0), timing(100.0, 0.0)], 0, 0),
        (vec![timing(98.0, 0.0), timing(100.0, 0.0)], 1, 0),
        (vec![timing(100.0, 0.0), timing(98.0, 0.0), timing(97.0, 0.0)], 0, 2),
    ] {
        assert_eq!(chosen(&timings, incumbent), expected, "{timings:?}");
        let Loss { by, uncertainty } = loss(&timings);
        assert!(by >= -0.05 && uncertainty < 0.1, "{by} ± {uncertainty} {timings:?}");
    }
}

/// Fifteen plans that are equally fast: one of them always seems to be the fastest, and none is.
#[test]
fn luck_is_no_loss() {
    let mut seed = 1_u64;
    let mut noise = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f64 / f64::from(1 << 24)
    };
    let mut timing =
        |us: f64| Timing::of((0..60).map(|_| us * (1.0 + 0.3 * noise())).collect(), vec![1.0; 60]);
    let (mut lost, mut seemed) = (0.0, 0.0);
    for _ in 0..40 {
        let equal: Vec<_> = (0..15).map(|_| timing(100.0)).collect();
        let fastest = equal.iter().min_by(|a, b| a.us.total_cmp(&b.us)).unwrap();
        seemed += equal[0].us / fastest.us - 1.0;
        lost += loss(&equal).by;
    }
    let (lost, seemed) = (lost / 40.0, seemed / 40.0);
    assert!(lost.abs() < 0.01 && seemed > 0.02, "{lost} where {seemed} would seem to be lost");
    // What is lost is seen.
    let slower: Vec<_> = [100.0, 90.0, 100.0].map(&mut timing).into();
    assert!((loss(&slower).by - 1.0 / 9.0).abs() < 0.04, "{:?}", loss(&slower));
}

#[test]
fn between_tuned_rows_the_nearest_count() {
    let entries = [64, 512, 4096].map(some_entry);
    let nearest = |m| Entry::nearest(&entries, m).map(|entry| entry.key().m);
    for (m, expected) in [
        (31, None),
        (32, Some(64)),
        (100, Some(64)),
        (200, Some(512)),
        (512, Some(512)),
        (1448, Some(512)),
        (1449, Some(4096)),
        (8192, Some(4096)),
        (8193, None),
        (0, None),
    ] {
        assert_eq!(nearest(m), expected, "{m}");
    }
    assert!(Entry::nearest(&[], 7).is_none());
}

/// Ten at once, each with entries of its own, over and over: in the end all are there.
#[test]
fn all_that_write_at_once_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let barrier = Barrier::new(10);
    std::thread::scope(|scope| {
        for writer in 0..10_usize {
            let (file, barrier) = (&file, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..5 {
                    let entry = Entry::new(Key { n: writer, ..key(1 << round) }, vec![plan("fused", 1.5)]);
                    Cache::write(file, &[entry]).unwrap();
                    // Whoever reads meanwhile sees a whole file.
                    assert!(Cache::read(file).of_layer(&Key { n: writer, ..key(0) }).len() > round);
                }
            });
        }
    });
    let cache = Cache::read(&file);
    for writer in 0..10 {
        assert_eq!(cache.of_layer(&Key { n: writer, ..key(0) }).len(), 5);
    }
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["tuning.json", "tuning.json.lock"]);
}

fn original(file: &FilePath) -> (Vec<Entry>, Vec<u8>) {
    let entries: Vec<Entry> = [64, 512].map(some_entry).into();
    Cache::write(file, &entries).unwrap();
    (entries, std::fs::read(file).unwrap())
}

/// What a damaged file still says is what was written, entry by entry.
fn check_damaged(bytes: &[u8], entries: &[Entry], what: &str) -> usize {
    let cache = Cache::of(bytes);
    let found: Vec<Entry> = [64, 512].iter().filter_map(|&m| cache.get(&key(m)).cloned()).collect();
    assert!(found.iter().all(|entry| entries.contains(entry)), "{what}: {found:?}");
    assert_eq!(cache.of_layer(&key(0)).len(), found.len(), "{what}");
    found.len()
}

#[test]
fn no_damaged_byte_is_believed() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, bytes) = original(&folder.path().join("tuning.json"));
    assert_eq!(check_damaged(&bytes, &entries, "whole"), 2);
    let mut seen = [0_usize; 3];
    for index in 0..bytes.len() {
        for flipped in [bytes[index] ^ 1, bytes[index] ^ 0x10, !bytes[index]] {
            let mut bytes = bytes.clone();
            bytes[index] = flipped;
            seen[check_damaged(&bytes, &entries, &format!("byte {index} is {flipped:#x}"))] += 1;
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    for length in 0..bytes.len() {
        let found = check_damaged(&bytes[..length], &entries, &format!("{length} bytes"));
        assert!(found == 0 || length + 1 == bytes.len(), "{length}");
    }
}

#[test]
fn what_is_no_cache_is_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let (entries, bytes) = original(&file);
    let text = String::from_utf8(bytes).unwrap();
    for (other, left) in [
        (text.replace("\"version\": 2", "\"version\": 0"), 0),
        (text.replace("flux tuning cache", "other"), 0),
        ("#!/bin/sh\n".to_owned(), 0),
        (text.replace("207.4", "207.5"), 0),
        (text.replacen("207.4", "207.5", 1), 1),
    ] {
        std::fs::write(&file, &other).unwrap();
        let cache = Cache::read(&file);
        assert_eq!(cache.of_layer(&key(0)).len(), left, "{other}");
        // A group goes on without it, and what is measured is kept.
        let group = on_host(2, Some(file.clone()));
        group.learn(&some_entry(8));
        assert_eq!(Cache::read(&file).of_layer(&key(0)).len(), left + 1);
        let aside = folder.path().join("tuning.json.damaged");
        assert_eq!(std::fs::read_to_string(&aside).unwrap(), other);
        // What is kept aside next does not replace it.
        std::fs::write(&file, "next").unwrap();
        Cache::write(&file, &entries).unwrap();
        assert_eq!(std::fs::read_to_string(&aside).unwrap(), other);
        let second = folder.path().join("tuning.json.damaged-2");
        assert_eq!(std::fs::read_to_string(&second).unwrap(), "next");
        [aside, second].iter().for_each(|aside| std::fs::remove_file(aside).unwrap());
    }
    // A newer program's file is left alone, and what is measured is known to the group.
    let newer = text.replace("\"version\": 2", "\"version\": 3");
    std::fs::write(&file, &newer).unwrap();
    let group = on_host(2, Some(file.clone()));
    [8, 16].iter().for_each(|&m| group.learn(&some_entry(m)));
    assert!([8, 16].iter().all(|&m| group.cache().get(&key(m)).is_some()));
    assert!(Cache::write(&file, &entries).unwrap_err().to_string().contains("version 3"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), newer);
    let error = Cache::write(folder.path(), &entries).unwrap_err();
    assert!(error.to_string().contains("not a file"), "{error}");
    let group = on_host(2, Some(folder.path().into()));
    group.learn(&some_entry(8)); // a warning
    assert!(group.cache().get(&key(8)).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn random_bytes_are_no_cache(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0_usize..2000, cut: bool) {
        let entries = [64, 512].map(some_entry);
        let mut cache = Cache::default();
        entries.iter().for_each(|entry| cache.add(entry.clone()));
        let original = cache.text().into_bytes();
        let at = at.min(original.len());
        let rest = if cut { &[][..] } else { &original[at..] };
        check_damaged(&[&original[..at], &bytes, rest].concat(), &entries, "random");
    }
}

/// A pipe is no cache, and nobody waits for one who writes to it.
#[test]
fn a_pipe_is_no_cache() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let (mode, kind) = (rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    assert_eq!(Cache::read(&pipe), Cache::default());
    assert!(Cache::write(&pipe, &[some_entry(64)]).unwrap_err().to_string().contains("not a file"));
}

/// Whatever a call takes, some calls make a sample, and no more than a stream holds.
#[test]
fn samples_have_some_calls_and_not_too_many() {
    for (us, calls) in [
        (0.0, 200),
        (14.0, 200),
        (100.0, 30),
        (101.0, 30),
        (2999.0, 2),
        (1e9, 2),
        (f64::INFINITY, 2),
        (f64::NAN, 200), // as one that takes no time
    ] {
        assert_eq!(measure::calls_of(us, Duration::from_millis(3)), calls, "{us} us");
    }
}
