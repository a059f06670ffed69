//! The commands under a launcher: each process runs one rank, and the first one speaks.

use flux_tests::data::{Fill, matrix};
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;
use std::process::{Command, Output};

fn flux(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux")).args(arguments).output().unwrap()
}

/// `flux launch -n W -- flux ARGUMENTS`.
fn launched(ranks: &str, arguments: &[&str]) -> Output {
    flux(&[&["launch", "-n", ranks, "--", env!("CARGO_BIN_EXE_flux")], arguments].concat())
}

/// What was printed, in which every line has its rank before it.
fn said(ran: &Output) -> String {
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        !text.is_empty() && text.lines().all(|line| line.starts_with("[0] ")),
        "only rank 0 speaks: {text}"
    );
    text.lines().map(|line| line.trim_start_matches("[0] ").to_owned() + "\n").collect()
}

#[test]
fn a_run_among_processes_gives_the_same_bits_as_one_in_a_single_process() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, here, among) = (path("in"), path("here"), path("among"));
    let (m, n, k) = (301, 40, 24);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let view =
        |rows, values| TensorView::new(Dtype::BF16, vec![rows, k], bytemuck::cast_slice(values)).unwrap();
    let tensors = [("a", view(m, &a)), ("b", view(n, &b))];
    std::fs::write(&input, safetensors::serialize(tensors, None).unwrap()).unwrap();
    for op in ["ag-gemm", "gemm-rs", "gemm-ar"] {
        let common =
            ["run", op, "--backend", "host", "--path", "fused", "--input", &input, "--report", "json"];
        let run = flux(&[&common[..], &["--ranks", "3", "--output", &here]].concat());
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let report = said(&launched("3", &[&common[..], &["--output", &among]].concat()));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!((&report["ranks"], &report["op"]), (&3.into(), &op.into()));
        assert_eq!(std::fs::read(&here).unwrap(), std::fs::read(&among).unwrap(), "{op}");
        std::fs::remove_file(&among).unwrap();
    }
    let other = ["run", "gemm-rs", "--ranks", "2", "--input", &input, "--output", &among];
    let refused = launched("3", &other);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && errors.contains("leave --ranks out"), "{errors}");
    assert!(!Path::new(&among).exists());
    let alone = flux(&["run", "gemm-rs", "--input", &input, "--output", &among]);
    assert!(
        alone.status.code() == Some(2) && String::from_utf8_lossy(&alone.stderr).contains("how many ranks?")
    );
}

#[test]
fn a_bench_among_processes_measures_all_ways() {
    // Several times: processes that do not agree on how many calls they make wait for each other, but not always.
    for op in ["gemm-rs", "gemm-rs", "ag-gemm", "ag-gemm", "gemm-ar", "gemm-ar"] {
        let arguments = ["bench", op, "--backend", "host", "--samples", "2", "--format", "json"];
        let report = said(&launched("2", &[&arguments[..], &["--shape", "64,32,32"]].concat()));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["ranks"], 2);
        let row = &report["rows"][0];
        for way in ["gemm", "communication", "unfused", "chunked", "fused"] {
            assert!(row[way]["us"].as_f64().unwrap() > 0.0, "{way}: {row}");
        }
    }
    for (arguments, why) in [
        (&["bench", "gemm", "--backend", "host"][..], "leave --ranks out"),
        (&["trace", "gemm-rs", "--backend", "host", "--shape", "8,8,8"], "without a launcher"),
    ] {
        let refused = launched("2", arguments);
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && errors.contains(why), "{arguments:?}: {errors}");
    }
}
