//! Groups of processes are right in every way: started by `flux launch`, and told who they are as Open MPI and Slurm do it. (The whole
//! table of shapes is tried with torchrun's variables, in `tests/tests/processes.rs`.)

use flux::{BackendChoice, Group, GroupConfig};
use flux_tests::table::{Case, check_bf16};
use std::process::{Command, Stdio};

/// What each process runs.
#[test]
#[ignore = "the other tests run it as the ranks of a group"]
fn rank() {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Host;
    let group = Group::from_env_with(config).unwrap();
    check_bf16(Case { m: 67, n: 40, k: 24, world_size: group.world_size() }, &|_| group.clone());
}

const ONE_RANK: [&str; 5] = ["--exact", "rank", "--ignored", "--test-threads", "1"];

#[test]
fn flux_launch() {
    for world_size in [1, 2, 3, 4, 8] {
        let mut launch = Command::new(env!("CARGO_BIN_EXE_flux"));
        launch.args(["launch", "-n", &world_size.to_string(), "--"]);
        let ran = launch.arg(std::env::current_exe().unwrap()).args(ONE_RANK).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{world_size} ranks: {said}{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(said.matches("test result: ok. 1 passed").count(), world_size, "{said}");
    }
}

/// Starts three processes, each with `variables` of its rank.
fn three_ranks(launcher: &str, variables: impl Fn(usize) -> Vec<(&'static str, String)>) {
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(ONE_RANK).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What the tests themselves were started with would come first.
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
            command.env_remove(name);
        }
        command.envs(variables(rank)).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..3).map(start).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let ran = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        let passed = ran.status.success() && said.contains("test result: ok. 1 passed");
        assert!(passed, "{launcher}, rank {rank}: {said}{}", String::from_utf8_lossy(&ran.stderr));
    }
}

#[test]
fn open_mpi() {
    three_ranks("Open MPI", |rank| {
        vec![
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "3".into()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3".into()),
            ("PMIX_NAMESPACE", format!("flux-test-{}", std::process::id())),
        ]
    });
}

#[test]
fn slurm() {
    three_ranks("Slurm", |rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "3".into()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_NODEID", "0".into()),
            ("SLURM_STEP_NUM_NODES", "1".into()),
            ("SLURM_STEP_NODELIST", "node[07]".into()),
            ("SLURM_STEP_TASKS_PER_NODE", "3".into()),
            ("SLURM_JOB_ID", std::process::id().to_string()),
            ("SLURM_STEP_ID", "0".into()),
        ]
    });
}
