//! Damaged files are refused or understood, and never bring the process down.

use std::path::Path;

use flux_topology::Topology;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Together with the truncations below, more than 10⁵ cases.
const CASES: u32 = 60_000;

fn files() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "xml" || kind == "txt"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

/// Everything that can be asked of it.
fn use_all(topology: &Topology) {
    let texts = [topology.report(), topology.to_json(), topology.to_nccl_xml(), topology.to_svg()];
    assert!(texts.iter().all(|text| !text.is_empty()));
}

/// Every beginning of every file. What is read from one is as large as what the whole file says: a smaller machine
/// would be a lie.
#[test]
fn truncated_files_are_refused_or_whole() {
    let mut cases = 0;
    for (name, bytes) in files() {
        let whole = Topology::parse(&bytes).ok();
        for end in 0..bytes.len() {
            cases += 1;
            let Ok(topology) = Topology::parse(&bytes[..end]) else { continue };
            let whole = whole.as_ref().unwrap_or_else(|| panic!("{name} is refused, but not up to {end}"));
            assert_eq!(topology.device_count(), whole.device_count(), "{name} up to {end}");
            assert_eq!(topology.nics().len(), whole.nics().len(), "{name} up to {end}");
            for (from, to) in
                (0..whole.device_count()).flat_map(|a| (0..whole.device_count()).map(move |b| (a, b)))
            {
                assert_eq!(topology.link(from, to), whole.link(from, to), "{name} up to {end}");
            }
            let is_xml = name.ends_with(".xml");
            let rest = String::from_utf8_lossy(&bytes[end..]);
            assert!(!is_xml || rest.trim().is_empty(), "{name} up to {end}: XML without its end");
        }
    }
    assert!(cases > 90_000, "{cases}");
}

#[test]
fn changed_bytes_do_no_harm() {
    let files = files();
    let change = (
        0..files.len(),
        proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    );
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(CASES / 4) });
    runner
        .run(&change, |(file, changes)| {
            let mut bytes = files[file].1.clone();
            for (at, byte, kind) in changes {
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            if let Ok(topology) = Topology::parse(&bytes) {
                use_all(&topology);
            }
            Ok(())
        })
        .unwrap();
}

/// Words of the formats in any order get further than bytes do.
#[test]
fn random_words_do_no_harm() {
    const WORDS: &[&str] = &[
        "GPU0",
        "GPU1",
        "GPU2",
        "NIC0",
        "mlx5_0",
        "X",
        "NV4",
        "NV99",
        "PIX",
        "SYS",
        "SYSX",
        "CPU Affinity",
        "NUMA Affinity",
        "0-3",
        "0,2-4294967295",
        "N/A",
        "\n",
        "\n",
        "\n",
        "\t",
        "\t\t",
        " ",
        "Legend:",
        "NIC0: mlx5_0",
        "NIC1:",
        "\u{1b}[4m",
        "MIG",
        "=",
        "<system>",
        "</system>",
        "<cpu numaid=\"1\">",
        "<cpu affinity=\"ffffffff,f\">",
        "</cpu>",
        "<pci busid=\"0:1.0\" class=\"0x030200\">",
        "<pci busid=\"0:2.0\" class=\"0x060400\">",
        "<pci/>",
        "</pci>",
        "<gpu dev=\"0\">",
        "<gpu dev=\"4294967295\" sm=\"4294967295\"/>",
        "</gpu>",
        "<nic>",
        "</nic>",
        "<net name=\"é\" speed=\"18446744073709551615\"/>",
        "<nvlink target=\"0:1.0\" count=\"4294967295\" tclass=\"0x068000\"/>",
        "<nvlink count=\"-1\"/>",
        "&amp;",
        "<!--",
        "-->",
        "]]>",
        "\u{feff}",
        "é",
    ];
    let words = proptest::collection::vec(prop::sample::select(WORDS), 0..40);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(CASES / 2) });
    runner
        .run(&words, |words| {
            for separator in ["", " "] {
                if let Ok(topology) = Topology::parse(words.join(separator).as_bytes()) {
                    use_all(&topology);
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_bytes_do_no_harm() {
    let bytes = proptest::collection::vec(any::<u8>(), 0..200);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(CASES / 4) });
    runner
        .run(&bytes, |bytes| {
            if let Ok(topology) = Topology::parse(&bytes) {
                use_all(&topology);
            }
            Ok(())
        })
        .unwrap();
}
