//! Groups of real processes on GPUs, one rank each: this program, started once for each rank. Where there are fewer GPUs than
//! ranks, processes take turns on them.

use flux::{BackendChoice, Group, GroupConfig, Placement, Sharing};
use flux_tests::launch::{PART, call_forever, check_killed, check_passed};
use flux_tests::table::{CASES, Case, check_bf16};
use std::time::Duration;

const THIS: &str = "processes::rank";

/// How long a wait may last where a rank is lost: much longer than its loss may go unnoticed.
const BUDGET: Duration = Duration::from_secs(120);

/// What the processes run: the part that they are told, `SHARING PLACEMENT WHAT`.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
#[allow(clippy::print_stderr)] // why there are no fabric handles
fn rank() {
    let part = std::env::var(PART).unwrap();
    let words: Vec<_> = part.split(' ').collect();
    let [sharing, placement, what] = words[..] else { panic!("{part}") };
    let mut config = GroupConfig::default();
    (config.backend, config.wait_budget) = (BackendChoice::Cuda, BUDGET);
    config.sharing = match sharing {
        "ipc" => Sharing::Ipc,
        "fabric" => Sharing::Fabric,
        "auto" => Sharing::Auto,
        _ => Sharing::Vmm,
    };
    config.peer_memory = if placement == "host" { Placement::PinnedHost } else { Placement::Device };
    let formed = Group::from_env_with(config);
    let group = match formed {
        // Not every machine lets every process use fabric handles; the error says so, on all ranks.
        Err(error) if sharing == "fabric" => {
            let error = error.to_string();
            assert!(error.contains("fabric handles") && error.contains("IMEX"), "{error}");
            eprintln!("no fabric handles here: {error}");
            return;
        }
        formed => formed.unwrap(),
    };
    match what {
        "table" => {
            for case in CASES {
                check_bf16(Case { world_size: group.world_size(), ..case }, &|_| group.clone());
            }
        }
        op => call_forever(&group, op),
    }
}

fn check_table(world_size: usize, how: &str) {
    check_passed("", world_size, THIS, &format!("{how} table"));
}

#[test]
fn two_processes_share_vmm_allocations() {
    check_table(2, "vmm device");
}

#[test]
fn four_processes_share_vmm_allocations() {
    check_table(4, "vmm device");
}

#[test]
fn two_processes_share_by_cuda_ipc() {
    check_table(2, "ipc device");
}

#[test]
fn four_processes_share_by_cuda_ipc() {
    check_table(4, "ipc device");
}

#[test]
fn two_processes_share_by_fabric_handles_or_say_why_not() {
    check_table(2, "fabric device");
}

#[test]
fn two_processes_share_as_they_can() {
    check_table(2, "auto device");
}

#[test]
fn two_processes_share_pinned_host_memory() {
    check_table(2, "vmm host");
}

#[test]
fn a_killed_process_ends_the_others() {
    for (part, killed) in [("vmm device ag-gemm", 1), ("vmm device gemm-rs", 0), ("ipc device gemm-rs", 1)] {
        check_killed(2, THIS, part, killed, BUDGET / 4);
    }
}
