//! `flux bench` as its users run it, on the host.

mod support;

use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};
use support::check_well_formed;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux")).arg("bench").args(arguments).output().unwrap()
}

/// Runs it on the host, where it must succeed; returns what it printed.
fn on_host(op: &str, arguments: &[&str]) -> String {
    let ran = bench(&[&[op, "--backend", "host", "--samples", "3"], arguments].concat());
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{op} {arguments:?}: {errors}");
    assert!(errors.is_empty(), "no bar where nobody sees it: {errors}");
    String::from_utf8(ran.stdout).unwrap()
}

const CONTENDERS: [&str; 7] = ["gemm", "cublas", "communication", "unfused", "chunked", "fused", "nccl"];

/// What docs/bench.md promises of a row; `present` are the contenders that were measured.
fn check_row(row: &Value, present: &[&str]) {
    for name in CONTENDERS {
        let contender = &row[name];
        if !present.contains(&name) {
            assert!(row.as_object().unwrap().contains_key(name) && contender.is_null(), "{name}: {row}");
            continue;
        }
        assert!(contender["us"].as_f64().unwrap() > 0.0, "{name}: {row}");
        assert!(contender["spread"].as_f64().unwrap() >= 0.0, "{name}: {row}");
        assert!(contender["host_us"].as_f64().unwrap() > 0.0, "{name}: {row}");
        assert!(contender["calls"].as_u64().unwrap() >= 1, "{name}: {row}");
        let error = contender["error"].as_f64();
        assert!(if name == "communication" { error.is_none() } else { error.unwrap() < 4e-3 }, "{row}");
    }
    assert!(row["gemm_tflops"].as_f64().unwrap() > 0.0 && row["cublas_tflops"].is_null(), "{row}");
    assert!(row["speedup_over_cublas"].is_null() && row["speedup_over_nccl"].is_null(), "{row}");
    let us = |name: &str| row[name]["us"].as_f64();
    let of_ways = ["floor_us", "ect_us", "speedup_over_unfused", "chunked_ect_us"];
    for field in of_ways.into_iter().chain(["chunked_speedup_over_unfused"]) {
        assert_eq!(row[field].is_f64(), present.contains(&"fused"), "{field}: {row}");
    }
    if let (Some(fused), Some(gemm), Some(unfused)) = (us("fused"), us("gemm"), us("unfused")) {
        assert!((row["ect_us"].as_f64().unwrap() - (fused - gemm)).abs() < 1e-6, "{row}");
        assert_eq!(row["efficiency"].is_f64(), unfused > gemm, "{row}");
    }
}

#[test]
fn every_element_type_is_measured() {
    for (op, ranks) in [("gemm", "1"), ("ag-gemm", "3"), ("gemm-rs", "2"), ("gemm-ar", "2")] {
        for dtype in ["f16", "e4m3"] {
            let shape = ["--ranks", ranks, "--shape", "150,72,48", "--dtype", dtype, "--format", "json"];
            let report: Value = serde_json::from_str(&on_host(op, &shape)).unwrap();
            assert_eq!(report["dtype"], dtype);
            assert!(report["rows"][0]["gemm"]["error"].as_f64().unwrap() < 4e-3, "{report}");
        }
    }
}

#[test]
fn json_has_the_documented_fields() {
    let ways = ["gemm", "communication", "unfused", "chunked", "fused"];
    // For gemm-ar: many rows, which are summed by shards, and few.
    let shapes = ["--shape", "300,256,256", "--shape", "65,72,40", "--format", "json"];
    for (op, ranks, present) in
        [("gemm", "1", &ways[..1]), ("ag-gemm", "4", &ways), ("gemm-rs", "3", &ways), ("gemm-ar", "3", &ways)]
    {
        let text = on_host(op, &[&["--ranks", ranks][..], &shapes].concat());
        let report: Value = serde_json::from_str(&text).unwrap();
        let string = |field: &str| report[field].as_str().unwrap_or_else(|| panic!("{field}: {report}"));
        assert_eq!((report["schema"].as_u64(), string("op"), string("dtype")), (Some(1), op, "bf16"));
        assert_eq!((string("backend"), string("against"), string("transfer")), ("host", "none", "push"));
        assert_eq!(string("delivery"), "auto");
        assert_eq!(string("sum"), "auto");
        assert_eq!((string("peer_memory"), report["ranks"].to_string().as_str()), ("device", ranks));
        assert_eq!(report["samples"], 3);
        assert_eq!(report["rest_ms"], 0.0);
        assert_eq!(string("clock"), if op == "gemm" { "device" } else { "host" });
        assert_eq!(report["devices"], serde_json::json!(["the host"]));
        for absent in ["gpu", "driver", "chunk_rows", "cublas_version", "nccl_version"] {
            assert!(report.as_object().unwrap().contains_key(absent) && report[absent].is_null(), "{absent}");
        }
        match op {
            "gemm" => assert!(report["nccl_missing"].is_null(), "{report}"),
            _ => assert!(string("nccl_missing").contains("host"), "{report}"),
        }
        assert!(string("command").starts_with(&format!("flux bench {op} --backend host")), "{report}");
        assert_eq!(string("flux"), env!("CARGO_PKG_VERSION"));
        let date = string("date");
        assert!(date.len() == 20 && date.starts_with("20") && date.ends_with('Z'), "{date}");
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        rows.iter().for_each(|row| check_row(row, present));
        let delivery = if op == "gemm-rs" || op == "gemm-ar" { "direct".into() } else { Value::Null };
        assert!(rows.iter().all(|row| row["delivery"] == delivery), "{report}");
        assert!(rows.iter().all(|row| row["sum"].is_null() == delivery.is_null()), "{report}");
        assert_eq!((&rows[1]["m"], &rows[1]["n"], &rows[1]["k"]), (&65.into(), &72.into(), &40.into()));
        let factor: u64 = ranks.parse().unwrap();
        let (n, k) = match op {
            "ag-gemm" => (72 * factor, 40),
            "gemm-rs" | "gemm-ar" => (72, 40 * factor),
            _ => (72, 40),
        };
        let whole = serde_json::json!({ "m": 65, "n": n, "k": k });
        // Ranks of the host share it: the plain GEMM is that of all of them.
        assert_eq!((&rows[1]["whole_shape"], &rows[1]["gemm_shape"]), (&whole, &whole));
    }
}

#[test]
fn options_reach_the_operations() {
    let common = ["--ranks", "2", "--shape", "70,24,16", "--dtype", "f16", "--chunk-rows", "9"];
    for op in ["ag-gemm", "gemm-rs", "gemm-ar"] {
        let pulled = ["--transfer", "pull", "--against", "none", "--format", "json"];
        let report: Value = serde_json::from_str(&on_host(op, &[&common[..], &pulled].concat())).unwrap();
        assert_eq!((&report["dtype"], &report["transfer"]), (&"f16".into(), &"pull".into()));
        assert_eq!(report["chunk_rows"], 9);
        assert!(report["rows"][0]["fused"]["error"].as_f64().unwrap() < 6e-4);
    }
    let table = on_host("gemm-rs", &[&common[..], &["--delivery", "relayed", "--sum", "separate"]].concat());
    assert!(["delivery", "relayed", "sum", "separate"].iter().all(|word| table.contains(word)), "{table}");
    let table = on_host("gemm-rs", &common);
    assert!(table.contains("delivery") && table.contains("direct"), "{table}");
    for word in
        ["gemm us", "x cuBLAS", "comm us", "unfused us", "chunked us", "fused us", "floor us", "ECT us"]
    {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(table.contains("nccl us") && table.contains("no nccl: NCCL connects GPUs"), "{table}");
    assert!(table.contains("medians of 3 samples") && table.contains("2 ranks on the host"), "{table}");
    let table = on_host("gemm", &["--m", "1,3", "--dtype", "f16"]);
    assert_eq!(
        table.lines().filter(|line| line.starts_with('│') && line.contains(" 384 ")).count(),
        4,
        "{table}"
    );
}

#[test]
fn results_are_saved_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    for (op, charts) in [("gemm", 1), ("ag-gemm", 2)] {
        let target = folder.path().join("new").join(op);
        let shapes = ["--shape", "16,64,32", "--shape", "64,64,32", "--shape", "64,32,32"];
        let save = ["--format", "json", "--save", target.to_str().unwrap()];
        let printed = on_host(op, &[&shapes[..], &save].concat());
        let saved = std::fs::read_to_string(target.join("bench.json")).unwrap();
        assert_eq!(saved, printed);
        let svg = std::fs::read_to_string(target.join("bench.svg")).unwrap();
        check_well_formed(&svg);
        assert!(
            svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && !svg.contains("NaN"),
            "{svg}"
        );
        assert_eq!(svg.matches("<g ").count(), charts, "{svg}");
        for label in ["n 64, k 32", "n 32, k 32", ">16<", ">64<", "m (rows of A)"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 2, "nothing else is left there");
    }
}

#[test]
fn a_folder_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join(std::ffi::OsStr::from_bytes(b"not UTF-8: \xff"));
    let arguments = ["bench", "gemm", "--backend", "host", "--samples", "1", "--shape", "4,4,4", "--save"];
    let ran = Command::new(env!("CARGO_BIN_EXE_flux")).args(arguments).arg(&target).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let saved: Value = serde_json::from_slice(&std::fs::read(target.join("bench.json")).unwrap()).unwrap();
    assert!(saved["command"].as_str().unwrap().contains("--save"), "{saved}");
}

/// Exit code 2 and a line that says what is wrong, before anything is measured.
#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let below_file = file.join("results");
    let taken = folder.path().join("taken");
    std::fs::create_dir_all(taken.join("bench.svg")).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (file, below_file, taken) = (path(&file), path(&below_file), path(&taken));
    // Far too large to be measured: an error that came later would be another one.
    let huge = "2000000000,2000000000,8";
    let cases: [(&[&str], &str); 18] = [
        (&["gemm", "--shape", "256,256"], "a shape is M,N,K"),
        (&["gemm", "--shape", "256,0,256"], "a shape is M,N,K"),
        (&["gemm", "--shape", "256,256,many"], "a shape is M,N,K"),
        (&["gemm", "--m", "0"], "a number from 1 on"),
        (&["gemm", "--m", "16", "--shape", "1,1,1"], "cannot be used with"),
        (&["gemm", "--samples", "0"], "a number from 1 on"),
        (&["gemm", "--rest-ms=-5"], "--rest-ms"),
        (&["gemm", "--ranks", "2"], "runs on one rank"),
        (&["ag-gemm", "--ranks", "0"], "at least one rank"),
        (&["ag-gemm", "--chunk-rows", "0"], "at least one row"),
        (&["ag-gemm", "--transfer", "throw"], "--transfer"),
        (&["gemm-rs", "--delivery", "post"], "--delivery"),
        (&["gemm-xx"], "gemm-rs"),
        (&["gemm", "--against", "cublas"], "use --against none"),
        (&["gemm", "--shape", huge], "out of memory"),
        (&["gemm", "--shape", huge, "--save", &file], "cannot write"),
        (&["gemm", "--shape", huge, "--save", &below_file], "cannot write"),
        (&["gemm", "--shape", huge, "--save", &taken], "it is a folder"),
    ];
    for (arguments, expected) in cases {
        let ran = bench(&[arguments, &["--backend", "host"]].concat());
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.starts_with("error: ") && errors.contains(expected), "{arguments:?}: {errors}");
        assert!(!errors.contains("panicked") && ran.stdout.is_empty(), "{arguments:?}: {errors}");
    }
}
