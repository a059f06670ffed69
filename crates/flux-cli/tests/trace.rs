//! `flux trace` as its users run it, on the host.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use support::check_well_formed;

fn trace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux")).arg("trace").args(arguments).output().unwrap()
}

/// Runs it, and returns what it printed, the JSON and the SVG.
fn traced(folder: &Path, arguments: &[&str]) -> (String, Value, String) {
    let (json, svg) = (folder.join("out.json"), folder.join("out.svg"));
    let files = ["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let ran = trace(&[arguments, &["--backend", "host"], &files].concat());
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    let json = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    (String::from_utf8(ran.stdout).unwrap(), json, std::fs::read_to_string(svg).unwrap())
}

/// What docs/trace.md promises of the events; returns the categories of those that last.
fn check_events(trace: &Value, ranks: u64) -> BTreeSet<String> {
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |event: &Value, what: &str, name: &str| {
        event["ph"] == "M"
            && event["name"] == what
            && event["args"]["name"].as_str().unwrap().starts_with(name)
    };
    let processes = events.iter().filter(|event| named(event, "process_name", "rank "));
    assert_eq!(
        processes.map(|event| event["pid"].as_u64().unwrap()).collect::<BTreeSet<_>>(),
        (0..ranks).collect()
    );
    let threads: BTreeSet<_> = events
        .iter()
        .filter(|event| {
            named(event, "thread_name", "thread ") || named(event, "thread_name", "transfer stream ")
        })
        .map(|event| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap()))
        .collect();
    let mut categories = BTreeSet::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        assert!(threads.contains(&thread), "{event}");
        assert!(event["ts"].as_f64().unwrap() >= 0.0 && event["name"].is_string(), "{event}");
        let category = event["cat"].as_str().unwrap();
        if event["ph"] == "i" {
            assert_eq!((category, &event["s"]), ("signal", &"t".into()), "{event}");
            continue;
        }
        assert_eq!(event["ph"], "X", "{event}");
        assert!(event["dur"].as_f64().unwrap() > 0.0, "{event}");
        let fields: &[&str] = match category {
            "transfer" => &["from", "to", "bytes", "signal"],
            "wait" => &["row_tile", "column_tile", "peer", "signals"],
            _ => &["launch", "index", "row_tile", "column_tile", "rows", "columns", "part", "parts", "block"],
        };
        let args = event["args"].as_object().unwrap();
        assert!(fields.iter().all(|&field| args.contains_key(field)), "{event}");
        categories.insert(category.to_owned());
    }
    categories
}

#[test]
fn every_operation_is_traced_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let shape = ["--shape", "512,256,128", "--ranks", "4"];
    let fused = [&shape[..], &["--path", "fused", "--chunk-rows", "32"]].concat();
    let pulled = [&shape[..], &["--path", "unfused", "--transfer", "pull"]].concat();
    let chunked = [&shape[..], &["--path", "chunked", "--one-shot-rows", "0"]].concat();
    let cases: [(&str, &[&str], u64, &str); 7] = [
        ("gemm", &shape[..2], 1, "path local"),
        ("ag-gemm", &fused, 4, "path fused"),
        ("gemm-rs", &fused, 4, "path fused"),
        ("gemm-ar", &fused, 4, "path fused"),
        ("ag-gemm", &pulled, 4, "pull"),
        ("gemm-rs", &pulled, 4, "path unfused"),
        ("gemm-ar", &chunked, 4, "path chunked"),
    ];
    for (op, arguments, ranks, says) in cases {
        let (printed, json, svg) = traced(folder.path(), &[&[op], arguments].concat());
        for word in ["rank", "span us", "multiply", "wait us", "gaps", "hand over", "tail us", says] {
            assert!(printed.contains(word), "{word}: {printed}");
        }
        let categories = check_events(&json, ranks);
        assert!(categories.contains("multiply") && categories.contains("store"), "{op}: {categories:?}");
        let moves = op != "gemm" && (op != "gemm-rs" || says != "path fused");
        assert_eq!(categories.contains("transfer"), moves, "{op}: {categories:?}");
        let about = &json["otherData"];
        assert_eq!((&about["op"], &about["ranks"], &about["m"]), (&op.into(), &ranks.into(), &512.into()));
        check_well_formed(&svg);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for label in ["waiting at a gate", "multiplying", "time in µs", &format!("rank {}", ranks - 1)] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left there");
}

/// Exit code 2 and a line that says what is wrong, before anything runs.
#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (here, nowhere) = (folder.path().to_str().unwrap().to_owned(), folder.path().join("no/folder.json"));
    let (file, nowhere) =
        (folder.path().join("x").to_str().unwrap().to_owned(), nowhere.to_str().unwrap().to_owned());
    // Far too large to be run: an error that came later would be another one.
    let huge = ["--shape", "2000000000,2000000000,8"];
    let cases: [(&[&str], &str); 11] = [
        (&["gemm"], "--shape"),
        (&["gemm", "--shape", "256,256"], "a shape is M,N,K"),
        (&["gemm-xx", "--shape", "1,1,1"], "gemm-rs"),
        (&["gemm", "--shape", "1,1,1", "--ranks", "2"], "runs on one rank"),
        (&["gemm", "--shape", "1,1,1", "--path", "fused"], "leave --path out"),
        (&["ag-gemm", "--shape", "1,1,1", "--ranks", "0"], "at least one rank"),
        (&["ag-gemm", "--shape", "1,1,1", "--chunk-rows", "0"], "at least one row"),
        (&["ag-gemm", huge[0], huge[1], "--json", &here], "it is a folder"),
        (&["ag-gemm", huge[0], huge[1], "--svg", &nowhere], "cannot write"),
        (&["ag-gemm", huge[0], huge[1], "--json", &file, "--svg", &file], "both --json and --svg"),
        (&["ag-gemm", huge[0], huge[1], "--json", &file], "more than a kernel can take"),
    ];
    for (arguments, expected) in cases {
        let ran = trace(&[arguments, &["--backend", "host"]].concat());
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left there");
}
