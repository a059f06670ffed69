//! `flux sim` as its users run it.

use flux_sim::Machine;
use flux_topology::Topology;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn flux(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux")).args(arguments).output().unwrap()
}

fn report(arguments: &[&str]) -> Value {
    let ran = flux(&[arguments, &["--format", "json"]].concat());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn a_sweep_has_a_row_for_each_m() {
    for op in ["ag-gemm", "gemm-rs", "gemm-ar"] {
        let sweep =
            ["sim", op, "--preset", "8xa100-pcie", "-n", "1024", "-k", "2048", "--sweep", "m=64..8192"];
        let report = report(&sweep);
        let rows = report["rows"].as_array().unwrap();
        let ms: Vec<_> = rows.iter().map(|row| row["m"].as_u64().unwrap()).collect();
        assert_eq!(ms, [64, 128, 256, 512, 1024, 2048, 4096, 8192]);
        for row in rows {
            let of = |name: &str| row[name].as_f64().unwrap();
            let gemm = of("t_gemm_us");
            assert!((of("ect_us") - (of("t_fused_us") - gemm)).abs() < 1e-6);
            assert!((of("e") - (1.0 - of("ect_us") / (of("t_unfused_us") - gemm))).abs() < 1e-9);
            assert!((of("t_comm_us") + gemm - of("t_unfused_us")).abs() < 1e-6);
        }
        let table = flux(&sweep);
        assert!(table.status.success() && String::from_utf8_lossy(&table.stdout).contains("8192"));
    }
}

#[test]
fn timelines_are_drawn_and_traced() {
    let folder = tempfile::tempdir().unwrap();
    let call =
        ["sim", "ag-gemm", "--preset", "dgx-a100", "--nodes", "2", "-m", "4096", "-n", "3072", "-k", "4096"];
    let json = folder.path().join("call.json");
    let svg = folder.path().join("call.svg");
    for (path, file) in [("fused", &json), ("fused", &svg), ("chunked", &json), ("unfused", &json)] {
        let ran = flux(&[&call[..], &["--path", path, "--timeline", file.to_str().unwrap()]].concat());
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let trace: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let transfers = events.iter().filter(|event| event["cat"] == "transfer").count();
    assert_eq!(transfers, 16 * 15);
    assert!(events.iter().all(|event| event["ph"] == "M" || event["dur"].as_f64().unwrap() > 0.0));
    let svg = std::fs::read_to_string(&svg).unwrap();
    assert!(svg.contains("rank 15") && svg.contains("waiting") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

/// Whatever `flux topo` shows, by name or from a file, is simulated in every order.
#[test]
fn every_machine_that_flux_topo_shows_is_simulated_in_every_order() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flux-topology/tests/cases");
    let files = std::fs::read_dir(cases).unwrap().map(|file| file.unwrap().path());
    let files: Vec<String> = files.map(|path| path.to_str().unwrap().to_owned()).collect();
    let machines = files.iter().filter(|path| path.ends_with(".txt") || path.ends_with(".xml"));
    let presets = Topology::presets().map(|name| ("--preset", name));
    let (mut simulated, mut assumed) = (0, 0);
    for (option, machine) in presets.chain(machines.map(|path| ("--file", path.as_str()))) {
        let shown = flux(&["topo", option, machine, "--format", "json"]);
        let base = ["sim", "ag-gemm", option, machine, "-m", "512", "-n", "1024", "-k", "1024"];
        let Ok(topology) = serde_json::from_slice::<Value>(&shown.stdout) else {
            // Truncated, or no topology: as clear here as there.
            let ran = flux(&base);
            assert_eq!(String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&shown.stderr));
            continue;
        };
        let gpus = topology["gpus"].as_array().unwrap().len();
        if gpus == 0 {
            assert!(String::from_utf8_lossy(&flux(&base).stderr).contains("it has no GPUs"), "{machine}");
            continue;
        }
        for order in ["auto", "full-mesh", "ring"] {
            let report = report(&[&base[..], &["--order", order]].concat());
            assert_eq!(report["gpus"], gpus, "{machine}");
            let row = &report["rows"][0];
            assert!(
                row["t_fused_us"].as_f64().unwrap() >= row["t_gemm_us"].as_f64().unwrap() * 0.99,
                "{row}"
            );
            let argument = topology["order_argument"].as_str().unwrap();
            // The simulator's own machines say themselves what fits.
            let own = Machine::presets().any(|name| name == machine);
            if order == "auto" && gpus > 1 && argument != "full-mesh" && !own {
                assert_eq!(report["order"], argument, "{machine}");
            }
            simulated += 1;
            assumed += usize::from(report["gpu_is_assumed"] == true);
        }
    }
    assert!(simulated > 150 && assumed > 30 && assumed < simulated / 2, "{assumed} of {simulated}");
}

#[test]
fn gpus_and_orders_can_be_chosen() {
    let base = ["sim", "ag-gemm", "--preset", "8xl40s-pcie", "-m", "4096", "-n", "1024", "-k", "8192"];
    let of = |more: &[&str]| report(&[&base[..], more].concat());
    let (ring, mesh) = (of(&[]), of(&["--order", "full-mesh"]));
    assert_eq!((&ring["gpu"], &ring["order"]), (&"L40S".into(), &"ring:0-3/4-7".into()));
    let comm = |of: &Value| of["rows"][0]["t_comm_us"].as_f64().unwrap();
    // All to all, each shard crosses between the sockets four times.
    assert!(comm(&mesh) > 2.0 * comm(&ring), "{mesh} {ring}");
    let slower = of(&["--gpu", "v100"]);
    let gemm = |of: &Value| of["rows"][0]["t_gemm_us"].as_f64().unwrap();
    assert!(slower["gpu"] == "V100" && gemm(&slower) > 2.0 * gemm(&ring), "{slower}");
    let two = of(&["--nodes", "2"]);
    assert_eq!((&two["gpus"], &two["order"]), (&16.into(), &"ring:0-3/4-7+ring:8-11/12-15".into()));
    let unknown = flux(&[&base[..], &["--gpu", "abacus"]].concat());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("H200"));
}

#[test]
fn mistakes_are_explained_in_one_line() {
    let base = ["sim", "gemm-rs", "-n", "8", "-k", "8"];
    for (arguments, part) in [
        (&["--preset", "h300", "-m", "8"][..], "dgx-h100"),
        (&["--preset", "dgx-h100", "-m", "8", "--nodes", "0"], "0 GPUs"),
        (&["--preset", "dgx-h100", "-m", "8", "--order", "ring:0-3"], "0-3"),
        (&["--file", "/nowhere", "-m", "8"], "/nowhere"),
        (&["--preset", "dgx-h100", "-m", "99999999"], "m is 99999999"),
        (&["--preset", "dgx-h100", "-m", "8", "--timeline", "x.png"], ".svg nor .json"),
    ] {
        let ran = flux(&[&base[..], arguments].concat());
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(
            ran.status.code() == Some(2) && error.contains(part) && error.lines().count() == 1,
            "{error}"
        );
    }
    let no_m = flux(&[&base[..], &["--preset", "dgx-h100"]].concat());
    assert_eq!(no_m.status.code(), Some(2));
}
