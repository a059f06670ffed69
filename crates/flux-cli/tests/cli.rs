//! The command as its users run it.

use flux::{Activation, E4m3, Element};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::epilogues::finish;
use flux_tests::table::CASES;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn flux(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux")).args(arguments).output().unwrap()
}

fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) {
    let views: BTreeMap<_, _> = tensors
        .iter()
        .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape.to_vec(), data).unwrap()))
        .collect();
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn write_operands<E: Element>(path: &Path, a: &[E], b: &[E], [m, n, k]: [usize; 3], dtype: Dtype) {
    let (a, b) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    write(path, &[("a", dtype, &[m, k], a), ("b", dtype, &[n, k], b)]);
}

fn check_case<E: Element>(folder: &Path, index: usize, dtype: Dtype, bound: f64) {
    let case = CASES[index];
    let shape @ [m, n, k] = [case.m, case.n, case.k];
    let (a, b) = (matrix::<E>(m * k, Fill::Normal, 1), matrix::<E>(n * k, Fill::Normal, 2));
    let reference = product(&a, &b, m, n, k);
    let (input, output) = (folder.join("in.safetensors"), folder.join("out.safetensors"));
    write_operands(&input, &a, &b, shape, dtype);
    let ranks = case.world_size.to_string();
    // The ways are all tested below the command; here each is taken by some case.
    let path = ["fused", "unfused", "auto", "chunked"][index % 4];
    let transfer = ["push", "pull"][index % 2];
    let delivery = ["relayed", "auto", "direct"][index % 3];
    let sum = ["separate", "folded"][index % 2];
    let few = ["0", "1000000"][index / 2 % 2];
    let order = ["auto", "ring", "full-mesh"][index % 3];
    for (op, chunk_rows, one_shot_rows) in
        [("ag-gemm", Some("37"), None), ("gemm-rs", None, None), ("gemm-ar", Some("37"), Some(few))]
    {
        let mut arguments = vec!["run", op, "--backend", "host", "--ranks", &ranks, "--path", path];
        arguments.extend(["--transfer", transfer, "--delivery", delivery, "--sum", sum, "--report", "json"]);
        arguments.extend(["--order", order]);
        arguments.extend(["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()]);
        arguments.extend(chunk_rows.iter().flat_map(|rows| ["--chunk-rows", rows]));
        arguments.extend(one_shot_rows.iter().flat_map(|rows| ["--one-shot-rows", rows]));
        let ran = flux(&arguments);
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{case:?} {op}: {errors}");
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(report["backend"], "host");
        assert_eq!(report["ranks"], case.world_size);
        assert_eq!(report["transfer"], transfer);
        let kind = if order == "ring" { "ring" } else { "mesh" };
        assert_eq!(report["order"], format!("{kind}:0-{}", case.world_size - 1));
        let one_shot = report["why"].as_str().unwrap().contains("few rows");
        let delivered = match delivery {
            _ if report["path"] != "fused" || op == "ag-gemm" => serde_json::Value::Null,
            "relayed" if !one_shot => "relayed".into(),
            _ => "direct".into(),
        };
        assert_eq!(report["delivery"], delivered, "{report}");
        let summed = match report["delivery"].is_null() {
            true => serde_json::Value::Null,
            false if one_shot || case.world_size == 1 => "separate".into(),
            false => sum.into(),
        };
        assert_eq!(report["sum"], summed, "{report}");
        // Few rows of an AllReduce are not cut into shards.
        let taken = if path == "chunked" && one_shot_rows == Some("1000000") { "unfused" } else { path };
        assert!(path == "auto" || report["path"] == taken, "{report}");
        assert!(
            report["why"].is_string() && report["tile"].is_array() && report["time_ms"].is_f64(),
            "{report}"
        );
        assert!(chunk_rows.is_none() || report["chunk_rows"] == 37, "{report}");
        let bytes = std::fs::read(&output).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let c = tensors.tensor("c").unwrap();
        assert_eq!((c.dtype(), c.shape()), (dtype, &[m, n][..]));
        let c: Vec<E> = c.data().chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
        let error = relative_error(&c, &reference);
        assert!(error < bound, "{case:?} {op}: error {error:e}");
        std::fs::remove_file(&output).unwrap();
    }
}

#[test]
fn files_go_in_and_come_out_right() {
    let folder = tempfile::tempdir().unwrap();
    for index in 0..CASES.len() {
        check_case::<bf16>(folder.path(), index, Dtype::BF16, 4e-3);
        check_case::<f16>(folder.path(), index, Dtype::F16, 6e-4);
    }
}

/// A bias under a name of its own, and half the columns with SwiGLU.
#[test]
fn biases_and_activations_are_applied() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    let (m, n, k) = (70, 44, 24);
    let [a, b, bias] =
        [(m * k, 1), (n * k, 2), (n, 3)].map(|(len, seed)| matrix::<bf16>(len, Fill::Normal, seed));
    let bytes = [&a, &b, &bias].map(|values| bytemuck::cast_slice::<bf16, u8>(values));
    let tensors: [(_, _, &[usize], _); 4] = [
        ("a", Dtype::BF16, &[m, k], bytes[0]),
        ("b", Dtype::BF16, &[n, k], bytes[1]),
        ("bias", Dtype::BF16, &[n], bytes[2]),
        ("fc1.bias", Dtype::BF16, &[n], bytes[2]),
    ];
    write(&input, &tensors);
    let sums = product(&a, &b, m, n, k);
    let common = ["--backend", "host", "--ranks", "3", "--report", "json"];
    let files = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    for (op, named, activation) in [
        ("ag-gemm", Some(&["--bias"][..]), Activation::SwiGlu),
        ("ag-gemm", Some(&["--bias", "fc1.bias"]), Activation::Gelu),
        ("ag-gemm", None, Activation::Silu),
        ("gemm-rs", Some(&["--bias"]), Activation::None),
        ("gemm-ar", Some(&["--bias"]), Activation::None),
    ] {
        let name = activation.to_string();
        let options = [named.unwrap_or_default(), &["--activation", &name]].concat();
        let ran = flux(&[&["run", op][..], &common, &files, &options].concat());
        assert!(ran.status.success(), "{op}: {}", String::from_utf8_lossy(&ran.stderr));
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!((&report["activation"], &report["bias"]), (&name.into(), &named.is_some().into()));
        let bytes = std::fs::read(&output).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let c = tensors.tensor("c").unwrap();
        assert_eq!(c.shape(), [m, n / activation.sums_per_column()]);
        let c: Vec<bf16> = c.data().chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
        let expected = finish(&sums, n, named.map(|_| &bias[..]), activation);
        let error = relative_error(&c, &expected);
        assert!(error < 4e-3, "{op} {activation}: error {error:e}");
        std::fs::remove_file(&output).unwrap();
    }
    for (op, options, expected) in [
        ("gemm-rs", &["--activation", "gelu"][..], "no activation"),
        ("gemm-rs", &["--order", "ring:0-3"], "one of 4 ranks, but the group has 3"),
        ("ag-gemm", &["--bias", "a"], "[44] is needed"),
        ("ag-gemm", &["--bias", "fc2.bias"], "no tensor `fc2.bias`"),
    ] {
        let ran = flux(&[&["run", op][..], &common, &files, options].concat());
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && errors.contains(expected), "{op}: {errors}");
        assert!(!output.exists() && errors.trim_end().lines().count() == 1, "{op}: {errors}");
    }
}

/// Everything a person can get wrong: exit code 2, one line that says what to do, and no output file.
#[test]
fn mistakes_are_explained_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let ones = [bf16::ONE; 64];
    let bytes: &[u8] = bytemuck::cast_slice(&ones);
    write(
        &at("good"),
        &[("a", Dtype::BF16, &[4, 8], &bytes[..64]), ("b", Dtype::BF16, &[2, 8], &bytes[..32])],
    );
    write(
        &at("no-b"),
        &[("a", Dtype::BF16, &[4, 8], &bytes[..64]), ("x", Dtype::BF16, &[2, 8], &bytes[..32])],
    );
    write(&at("f32"), &[("a", Dtype::F32, &[2, 8], &bytes[..64]), ("b", Dtype::F32, &[1, 8], &bytes[..32])]);
    write(
        &at("mixed"),
        &[("a", Dtype::F16, &[4, 8], &bytes[..64]), ("b", Dtype::BF16, &[2, 8], &bytes[..32])],
    );
    write(
        &at("depths"),
        &[("a", Dtype::BF16, &[4, 8], &bytes[..64]), ("b", Dtype::BF16, &[4, 4], &bytes[..32])],
    );
    write(
        &at("vector"),
        &[("a", Dtype::BF16, &[32], &bytes[..64]), ("b", Dtype::BF16, &[2, 8], &bytes[..32])],
    );
    write(&at("huge"), &[("a", Dtype::BF16, &[1 << 22, 0], &[]), ("b", Dtype::BF16, &[1 << 22, 0], &[])]);
    write(&at("endless"), &[("a", Dtype::BF16, &[1 << 40, 0], &[]), ("b", Dtype::BF16, &[1 << 40, 0], &[])]);
    std::fs::write(at("text"), "no tensors").unwrap();
    let output = at("out.safetensors");
    let nowhere = PathBuf::from("no/such/folder/out.safetensors");
    let cases = [
        ("missing", "2", &output, "cannot read"),
        ("text", "2", &output, "not a safetensors file"),
        ("no-b", "2", &output, "no tensor `b`"),
        ("f32", "2", &output, "convert it to BF16, F16 or F8_E4M3"),
        ("mixed", "2", &output, "convert one of them"),
        ("depths", "2", &output, "differ in K"),
        ("vector", "2", &output, "two dimensions"),
        ("huge", "2", &output, "out of memory"),
        ("endless", "2", &output, "split the matrix"),
        ("good", "0", &output, "at least one rank"),
        ("good", "-1", &output, "--ranks"),
        ("good", "2", &nowhere, "cannot write"),
    ];
    for (input, ranks, output, expected) in cases {
        let input = at(input);
        for op in ["ag-gemm", "gemm-rs", "gemm-ar"] {
            let ranks = format!("--ranks={ranks}");
            let (input, output_text) = (input.to_str().unwrap(), output.to_str().unwrap());
            let ran =
                flux(&["run", op, "--backend", "host", &ranks, "--input", input, "--output", output_text]);
            let errors = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{input}: {errors}");
            assert!(errors.contains(expected), "{input}: {errors}");
            assert!(errors.starts_with("error: ") && !errors.contains("panicked"), "{input}: {errors}");
            let lines = errors.lines().filter(|line| !line.is_empty() && !line.starts_with("For more"));
            assert_eq!(lines.count(), 1, "{input}: {errors}");
            assert!(!output.exists(), "{input} left an output");
        }
    }
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".flux-")), "{left:?}");
}

/// 8-bit matrices with scales; the result and the bias are bf16.
#[test]
fn scales_are_applied() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    let (m, n, k) = (30, 44, 24);
    let [a, b] = [(m * k, 1), (n * k, 2)].map(|(len, seed)| matrix::<E4m3>(len, Fill::Normal, seed));
    let bias = matrix::<bf16>(n, Fill::Normal, 3);
    let each: Vec<_> = (0..m).map(|row| 0.5 + row as f32).collect();
    let (one, narrow) = ([0.25_f32], [E4m3::ONE; 44]);
    write(
        &input,
        &[
            ("a", Dtype::F8_E4M3, &[m, k], bytemuck::cast_slice(&a)),
            ("b", Dtype::F8_E4M3, &[n, k], bytemuck::cast_slice(&b)),
            ("bias", Dtype::BF16, &[n], bytemuck::cast_slice(&bias)),
            ("narrow", Dtype::F8_E4M3, &[n], bytemuck::cast_slice(&narrow)),
            ("a_scale", Dtype::F32, &[m, 1], bytemuck::cast_slice(&each)),
            ("one", Dtype::F32, &[], bytemuck::cast_slice(&one)),
        ],
    );
    let run = |op, extra: &[&str]| {
        let paths = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        flux(
            &[&["run", op, "--backend", "host", "--ranks", "3", "--report", "json"], &paths[..], extra]
                .concat(),
        )
    };
    let scaled: Vec<_> = product(&a, &b, m, n, k)
        .into_iter()
        .enumerate()
        .map(|(index, sum)| sum * f64::from(each[index / n] * one[0]))
        .collect();
    let expected = finish(&scaled, n, Some(&bias), Activation::None);
    for op in ["ag-gemm", "gemm-rs", "gemm-ar"] {
        let ran = run(op, &["--a-scale", "--b-scale", "one", "--bias"]);
        assert!(ran.status.success(), "{op}: {}", String::from_utf8_lossy(&ran.stderr));
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!((&report["dtype"], &report["b_scale"]), (&"e4m3".into(), &true.into()));
        let bytes = std::fs::read(&output).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let c = tensors.tensor("c").unwrap();
        assert_eq!((c.dtype(), c.shape()), (Dtype::BF16, &[m, n][..]));
        let c: Vec<bf16> = c.data().chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
        assert!(relative_error(&c, &expected) < 4e-3, "{op}");
    }
    for (extra, reason) in [
        (["--b-scale", "a_scale"], "one for each of 44 rows"),
        (["--a-scale", "bias"], "convert it to F32"),
        (["--a-scale", "lost"], "no tensor `lost`"),
        (["--bias", "narrow"], "must be BF16"),
    ] {
        let ran = run("gemm-rs", &extra);
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && errors.contains(reason), "{extra:?}: {errors}");
    }
}

/// What is not a file is neither replaced nor read without end; what is behind a link is, and the link stays.
#[test]
fn only_files_are_read_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let ones = [bf16::ONE; 16];
    let bytes: &[u8] = bytemuck::cast_slice(&ones);
    write(&at("in"), &[("a", Dtype::BF16, &[2, 8], bytes), ("b", Dtype::BF16, &[2, 8], bytes)]);
    let run = |input: &Path, output: &Path| {
        let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
        flux(&["run", "ag-gemm", "--backend", "host", "--ranks", "2", "--input", input, "--output", output])
    };
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
    std::os::unix::fs::symlink("socket", at("to-socket")).unwrap();
    for output in ["socket", "dangling", "to-socket"] {
        let before = std::fs::symlink_metadata(at(output)).unwrap().file_type();
        let ran = run(&at("in"), &at(output));
        assert_eq!(ran.status.code(), Some(2), "{output}: {}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(std::fs::symlink_metadata(at(output)).unwrap().file_type(), before, "{output}");
    }
    assert_eq!(run(Path::new("/dev/zero"), &at("out")).status.code(), Some(2));
    std::fs::write(at("real"), "old").unwrap();
    std::os::unix::fs::symlink("real", at("link")).unwrap();
    assert!(run(&at("in"), &at("link")).status.success());
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert!(SafeTensors::deserialize(&std::fs::read(at("real")).unwrap()).is_ok());
}

/// A reader of the output that has gone away is no reason to panic.
#[test]
fn a_closed_output_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = Command::new(env!("CARGO_BIN_EXE_flux"))
        .args(["topo", "--preset", "h200-8-nvswitch"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(
        (ran.status.code(), ran.stderr.len()),
        (Some(0), 0),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn an_existing_output_survives_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.safetensors");
    std::fs::write(&output, "precious").unwrap();
    let ran =
        flux(&["run", "ag-gemm", "--ranks", "2", "--input", "missing", "--output", output.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "precious");
}

/// No driver, or no GPU that this process may see: `--backend cuda` says so.
#[test]
fn no_gpu_is_explained() {
    let ran = Command::new(env!("CARGO_BIN_EXE_flux"))
        .args(["demo", "--backend", "cuda"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{errors}");
    assert!(errors.contains("use the host backend"), "{errors}");
}

#[test]
fn the_demo_is_right_on_the_host() {
    let ran = flux(&["demo", "--backend", "host", "--ranks", "3"]);
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}");
    assert_eq!(text.matches(" ok ").count(), 4, "{text}");
    assert!(text.contains("fused") && text.contains("unfused") && text.contains("AllGather+GEMM"), "{text}");
}

#[test]
fn topo_knows_machines_by_name() {
    let ran = flux(&["topo", "--preset", "h200-8-nvswitch"]);
    assert!(ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("NV18"));
    let ran = flux(&["topo", "--preset", "abacus"]);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(2) && errors.contains("h200-8-nvswitch"), "{errors}");
}

fn topology_case(file: &str) -> String {
    format!("{}/../flux-topology/tests/cases/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn topo_reads_files_of_either_format() {
    for file in ["oci-h100-8-dual-port-nics.xml", "h20-8-nvswitch-8nic-tabs.txt"] {
        let ran = flux(&["topo", "--file", &topology_case(file), "--format", "json"]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!((&json["order"], &json["nvswitch"]), (&"full-mesh".into(), &true.into()), "{file}");
        assert_eq!((&json["gpus"][7]["numa"], &json["pairs"][0][7]), (&1.into(), &"NV18".into()), "{file}");
    }
    let ran = flux(&["topo", "--file", &topology_case("gpu5-uneven-numa.txt")]);
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(text.contains("order of AllGather and ReduceScatter: ring"), "{text}");
    assert!(text.contains("different numbers of GPUs (4 + 1)"), "{text}");
}

#[test]
fn topo_writes_what_others_read() {
    let xml = flux(&["topo", "--preset", "dgx-1-v100", "--format", "xml"]);
    assert!(xml.status.success() && xml.stdout.starts_with(b"<!--"));
    let mut again = Command::new(env!("CARGO_BIN_EXE_flux"))
        .args(["topo", "--file", "-", "--format", "json"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut again.stdin.take().unwrap(), &xml.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&again.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((&json["pairs"][0][3], &json["pairs"][0][7]), (&"NV2".into(), &"SYS".into()));
    let svg = flux(&["topo", "--preset", "gb200-nvl72", "--nodes", "2", "--format", "svg"]);
    assert!(svg.status.success() && svg.stdout.starts_with(b"<svg"));
    let list = flux(&["topo", "--preset", "list"]);
    assert!(list.status.success() && String::from_utf8_lossy(&list.stdout).contains("gb200-nvl72"));
}

#[test]
fn topo_says_what_is_wrong_with_a_file() {
    let table = [
        ("odd-truncated-v100-16-dgx2.txt", "rows missing for GPU5..GPU15"),
        ("odd-truncated-h200-dump.xml", "line 53, column 1: the file ends early"),
        ("odd-not-a-topology-graphs.xml", "not a topology file"),
        ("not-there.xml", "cannot read"),
    ];
    for (file, want) in table {
        let ran = flux(&["topo", "--file", &topology_case(file)]);
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && ran.stdout.is_empty(), "{errors}");
        assert!(errors.contains(file) && errors.contains(want), "{errors}");
    }
    for arguments in
        [&["topo", "--preset", "dgx-2", "--nodes", "0"], &["topo", "--preset", "dgx-2", "--nodes", "1000000"]]
    {
        assert_eq!(flux(arguments).status.code(), Some(2));
    }
    assert_eq!(flux(&["topo", "--preset", "dgx-2", "--file", "x"]).status.code(), Some(2));
}
