//! `flux plan` and `flux tune` as their users run them.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
    command.args(arguments);
    command
}

fn flux(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let ran = flux(&[arguments, &["--format", "json"]].concat());
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn table(arguments: &[&str]) -> String {
    let ran = flux(arguments);
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

const SIZES: [&str; 6] = ["-m", "4096", "-n", "6144", "-k", "12288"];

#[test]
fn every_candidate_has_its_score_or_its_reason() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flux-topology/tests/cases");
    let case = std::fs::read_dir(&case).unwrap().map(|file| file.unwrap().path());
    let case = case.filter(|path| path.to_string_lossy().contains("a100-8-full-dump")).last().unwrap();
    let case = case.to_str().unwrap();
    for op in ["ag-gemm", "gemm-rs", "gemm-ar"] {
        for (machine, ranks) in [
            (&["--preset", "hgx-h200"][..], 8),
            (&["--preset", "8xl20-pcie"], 8),
            (&["--preset", "dgx-h100", "--ranks", "3"], 3),
            (&["--preset", "dgx-a100", "--ranks", "16"], 16),
            (&["--preset", "aws-p4d-24xl"], 8),
            (&["--file", case], 8),
            (&["--backend", "host", "--ranks", "3", "--cache", "/nowhere/at/all"], 3),
        ] {
            let arguments = [&["plan", op], &SIZES[..], machine].concat();
            let plan = json(&arguments);
            let whole = if op == "ag-gemm" { (6144 * ranks, 12288) } else { (6144, 12288 * ranks) };
            assert_eq!(
                (plan["n"].as_u64(), plan["k"].as_u64()),
                (Some(whole.0), Some(whole.1)),
                "{arguments:?}"
            );
            assert_eq!((&plan["op"], &plan["world_size"]), (&op.into(), &ranks.into()));
            assert_eq!((&plan["source"], &plan["m"]), (&"model".into(), &4096.into()));
            let candidates = plan["candidates"].as_array().unwrap();
            assert!(candidates.len() >= 6 && candidates[0]["verdict"]["is"] == "chosen", "{plan}");
            for of in candidates {
                let verdict = &of["verdict"];
                let says = verdict["is"] == "chosen" || verdict["by"].is_f64() || verdict["why"].is_string();
                assert!(says && (of["predicted_us"].is_f64() || verdict["why"].is_string()), "{of}");
            }
            let table = table(&arguments);
            assert!(table.lines().count() == candidates.len() + 3 && table.contains("slower by"), "{table}");
        }
    }
    let forced = [&["plan", "gemm-rs"], &SIZES[..], &["--preset", "hgx-h200", "--path", "unfused"]].concat();
    let forced = json(&forced);
    assert_eq!((&forced["source"], &forced["chosen"]["path"]), (&"forced".into(), &"unfused".into()));
}

/// `flux topo` says the same of the file.
#[test]
fn the_environment_says_what_connects_the_ranks() {
    let case =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../flux-topology/tests/cases/gpu5-uneven-numa.txt");
    let plan = |ranks: &str| {
        let arguments = [&["plan", "gemm-ar"], &SIZES[..], &["--backend", "host", "--ranks", ranks]].concat();
        command(&arguments).env("FLUX_TOPOLOGY", &case).output().unwrap()
    };
    let table = String::from_utf8(plan("5").stdout).unwrap();
    assert!(table.contains("ring:1-4,0"), "{table}");
    let error = String::from_utf8(plan("4").stderr).unwrap();
    assert!(error.contains("5 GPUs") && error.contains("4 ranks"), "{error}");
}

#[test]
fn mistakes_are_explained_in_one_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = file.path().to_str().unwrap();
    for (arguments, words) in [
        (&["--preset", "nope"][..], "hgx-h200"),
        (&["--preset", "dgx-a100", "--ranks", "12"], "whole number of machines"),
        (&["--preset", "dgx-a100", "--max-m", "7"], "7"),
        (&["--preset", "hgx-h200", "--tile", "96x256"], "128x256"),
        (&["--backend", "host", "--ranks", "2", "--tile", "128x256"], "64x128"),
        (&["--file", "/nowhere"], "/nowhere"),
        (&["--file", file], file),
    ] {
        let ran = flux(&[&["plan", "ag-gemm"], &SIZES[..], arguments].concat());
        let error = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code() == Some(2) && ran.stdout.is_empty(), "{arguments:?}: {error}");
        assert!(error.lines().count() == 1 && error.contains(words), "{arguments:?}: {error}");
    }
    // Nothing that says how to run here says anything of another machine.
    for of_here in [["--backend", "host"], ["--transport", "sockets"], ["--fake-nodes", "2"]] {
        let ran = flux(&[&["plan", "ag-gemm"], &SIZES[..], &["--preset", "dgx-h100"], &of_here].concat());
        let error = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code() == Some(2) && error.contains(of_here[0]), "{error}");
    }
    let ran = flux(&["tune", "ag-gemm", "--check", "--tolerance", "nan"]);
    assert!(ran.status.code() == Some(2) && String::from_utf8_lossy(&ran.stderr).contains("finite"));
    let most = format!("{},1,1", u64::MAX);
    let ran = flux(&["tune", "ag-gemm", "--backend", "host", "--ranks", "2", "--check", "--shape", &most]);
    let error = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.code() == Some(2) && error.contains(&u64::MAX.to_string()), "{error}");
    for command in ["plan", "sim"] {
        let list = table(&[&[command, "ag-gemm"], &SIZES[..], &["--preset", "list"]].concat());
        assert!(list.contains("8xl20-pcie") && list.contains("aws-p4d-24xl"), "{list}");
    }
    let ran = flux(&["tune", "ag-gemm", "--backend", "host", "--ranks", "2", "--cache", "/proc/no/cache"]);
    let error = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.code() == Some(2) && error.contains("/proc/no/cache"), "{error}");
}

/// Ten at once, of two operations and five shapes; and then again: the file stays as it is.
#[test]
fn ten_processes_tune_at_once_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cache/tuning.json");
    let name = file.to_str().unwrap();
    let tune = |op: &str, n: usize| {
        let shape = format!("32,{n},16");
        let common = ["tune", op, "--backend", "host", "--ranks", "2", "--samples", "2", "--cache", name];
        command(&[&common[..], &["--shape", &shape]].concat()).output().unwrap()
    };
    let all = || [16, 24, 32, 40, 48].into_iter().flat_map(|n| ["ag-gemm", "gemm-rs"].map(|op| (op, n)));
    std::thread::scope(|scope| {
        let running: Vec<_> = all().map(|(op, n)| scope.spawn(move || tune(op, n))).collect();
        for ran in running {
            let ran = ran.join().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        }
    });
    let text = std::fs::read_to_string(&file).unwrap();
    let cache: Value = serde_json::from_str(&text).unwrap();
    let key = |of: &Value| (of["key"]["op"].as_str().unwrap().to_owned(), of["key"]["n"].as_u64().unwrap());
    let mut keys: Vec<_> = cache["entries"].as_array().unwrap().iter().map(key).collect();
    keys.sort();
    let whole = |op: &str, n: usize| (op.to_owned(), if op == "ag-gemm" { 2 * n as u64 } else { n as u64 });
    let mut expected: Vec<_> = all().map(|(op, n)| whole(op, n)).collect();
    expected.sort();
    assert_eq!(keys, expected, "{text}");
    for (op, n) in all().take(4) {
        let again = tune(op, n);
        assert!(String::from_utf8_lossy(&again.stdout).contains("measured already"));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    // What was measured is what is planned.
    let plan = ["plan", "gemm-rs", "-m", "30", "-n", "24", "-k", "16", "--backend", "host", "--ranks", "2"];
    assert_eq!(json(&[&plan[..], &["--cache", name]].concat())["source"], "tuned");
    std::fs::write(&file, text.replace("\"us\"", "\"as\"")).unwrap();
    assert_eq!(json(&[&plan[..], &["--cache", name]].concat())["source"], "model");
}

#[test]
fn a_check_measures_all_and_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let arguments = [
        "tune",
        "gemm-ar",
        "--check",
        "--tolerance",
        "1000",
        "--shape",
        "20,16,16",
        "--samples",
        "2",
        "--ranks",
        "2",
        "--backend",
        "host",
        "--cache",
        file.to_str().unwrap(),
    ];
    let report = json(&arguments);
    let row = &report["rows"][0];
    assert!(report["check"] == true && row["m"] == 32 && row["loss"].is_f64(), "{report}");
    assert!(row["entry"]["plans"].as_array().unwrap().len() >= 10, "{report}");
    assert!(table(&arguments).contains("slowest") && !file.exists());
    // No plan is faster than the fastest by twice its time.
    let strict = arguments.map(|word| if word == "1000" { "-2" } else { word });
    let ran = flux(&strict);
    assert!(ran.status.code() == Some(1), "{}", String::from_utf8_lossy(&ran.stderr));
}
