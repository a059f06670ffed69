//! Groups of real processes on several nodes, of which one machine plays all, on the host backend: this program, started once for
//! each rank with torchrun's variables. Between nodes there are only sockets.

use flux::{BackendChoice, Group, GroupConfig};
use flux_tests::launch::{LIMIT, PART, Processes, call_forever, check_killed_after, check_passed};
use flux_tests::table::{Case, check_bf16};
use std::time::Duration;
use tempfile::TempDir;

/// How long a wait may last in the tests in which a rank is lost: much longer than its loss may go unnoticed.
const BUDGET: Duration = Duration::from_secs(120);

/// What the processes run: the part that they are told.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    let part = std::env::var(PART).unwrap();
    let mut config = GroupConfig::default();
    (config.backend, config.wait_budget) = (BackendChoice::Host, BUDGET);
    let group = Group::from_env_with(config).unwrap();
    match part.as_str() {
        "table" => {
            let world_size = group.world_size();
            assert!(group.nodes().len() == 2 || std::env::var("FLUX_TRANSPORT").is_ok());
            for (m, n, k) in [(67, 40, 24), (2, 8, 8)] {
                check_bf16(Case { m, n, k, world_size }, &|_| group.clone());
            }
        }
        op => call_forever(&group, op),
    }
}

/// Nodes of the same size and of different ones, and only sockets.
#[test]
fn every_way_is_right() {
    check_passed("export FLUX_FAKE_NODES=2;", 4, "rank", "table");
    check_passed("export FLUX_FAKE_NODES=2;", 6, "rank", "table");
    check_passed("export FLUX_FAKE_NODES=2;", 5, "rank", "table");
    check_passed("export FLUX_TRANSPORT=sockets;", 3, "rank", "table");
    check_passed("export FLUX_TRANSPORT=sockets;", 1, "rank", "table");
}

/// The environment says what connects the ranks, be they on nodes that it knows nothing of.
#[test]
fn ranks_are_told_what_connects_them() {
    const BEFORE: &str = concat!(
        "export FLUX_FAKE_NODES=2 FLUX_TOPOLOGY='",
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/flux-topology/tests/cases/amd-3-pcie-2numa-uneven.xml';"
    );
    check_passed(BEFORE, 3, "rank", "table");
}

/// When a process is killed, those of its node and of the other one end at once and name it, whichever it is.
#[test]
fn a_killed_rank_ends_the_others_on_all_nodes() {
    for (part, killed) in [("ag-gemm", 3), ("gemm-rs", 1), ("gemm-ar", 0)] {
        check_killed_after("export FLUX_FAKE_NODES=2;", 4, "rank", part, killed, BUDGET / 4);
    }
}

#[test]
fn what_the_environment_says_is_checked() {
    let folder = TempDir::new().unwrap();
    for (before, expected) in [
        ("export FLUX_TRANSPORT=tcp;", "NoSuchTransport { name: \"tcp\" }"),
        ("export FLUX_TRANSPORT=nccl;", "this group runs on the host"),
        ("export FLUX_FAKE_NODES=three;", "`three` is not such a number"),
        ("export FLUX_FAKE_NODES=3;", "3 nodes are more than 2 ranks"),
        ("export FLUX_TOPOLOGY=/nowhere;", "BadTopology { path: \"/nowhere\""),
    ] {
        for ended in Processes::start(2, "rank", "table", folder.path(), |_| before).wait(LIMIT) {
            assert!(!ended.success, "{before}");
            assert!(ended.errors.contains(expected), "{expected}: {}", ended.errors);
        }
    }
}
