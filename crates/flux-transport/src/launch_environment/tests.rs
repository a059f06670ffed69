use super::*;
use proptest::prelude::*;

/// Variables as one writes them in a shell: `RANK=0 WORLD_SIZE=2`.
fn detect(variables: &str) -> Result<Option<LaunchEnvironment>, LaunchError> {
    let lookup = |name: &str| {
        variables.split_whitespace().find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap();
            (key == name).then(|| value.to_owned())
        })
    };
    LaunchEnvironment::detect(lookup)
}

fn found(variables: &str) -> LaunchEnvironment {
    match detect(variables) {
        Ok(Some(found)) => found,
        other => panic!("{variables}: {other:?}"),
    }
}

const TORCHRUN: &str =
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT=29500";
const MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                   OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-17@1";
const SLURM: &str = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 \
                     SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=gpu[008-009]";

#[test]
fn what_launchers_set_is_understood() {
    use Launcher::{OpenMpi, Slurm, Torchrun};
    // launcher, [rank, world size, local rank, local world size], host, port if it is a given one, nodes
    type Expected = (Launcher, [usize; 4], &'static str, Option<u16>, Option<usize>);
    let cases: [(&str, Expected); 20] = [
        (TORCHRUN, (Torchrun, [3, 4, 1, 2], "node-a", Some(29_500), Some(2))),
        ("RANK=0 WORLD_SIZE=1", (Torchrun, [0, 1, 0, 1], "127.0.0.1", None, Some(1))),
        (
            "RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=1",
            (Torchrun, [1, 3, 1, 3], "127.0.0.1", Some(1), Some(1)),
        ),
        (
            "RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 MASTER_ADDR=localhost MASTER_PORT=1",
            (Torchrun, [1, 3, 1, 3], "localhost", Some(1), Some(1)),
        ),
        (
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=[::1] MASTER_PORT=1 FLUX_PORT=2",
            (Torchrun, [1, 2, 1, 2], "[::1]", Some(2), Some(1)),
        ),
        // torchrun's own store listens on MASTER_PORT.
        (
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=29500 \
             TORCHELASTIC_USE_AGENT_STORE=True",
            (Torchrun, [1, 2, 1, 2], "n", None, Some(1)),
        ),
        (
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=29500 \
             TORCHELASTIC_USE_AGENT_STORE=False",
            (Torchrun, [1, 2, 1, 2], "n", Some(29_500), Some(1)),
        ),
        // Unequal nodes.
        (
            "RANK=4 WORLD_SIZE=5 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=1",
            (Torchrun, [4, 5, 1, 2], "n", Some(1), None),
        ),
        (MPI, (OpenMpi, [1, 2, 1, 2], "127.0.0.1", None, Some(1))),
        (
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 \
             OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=5",
            (OpenMpi, [2, 4, 0, 2], "n0", Some(5), Some(2)),
        ),
        // Round robin over two nodes.
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 \
             OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=5",
            (OpenMpi, [1, 4, 0, 2], "n0", Some(5), None),
        ),
        (SLURM, (Slurm, [5, 8, 1, 4], "gpu008", None, Some(2))),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=gpu5",
            (Slurm, [1, 2, 1, 2], "127.0.0.1", None, Some(1)),
        ),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 MASTER_PORT=9",
            (Slurm, [1, 2, 1, 2], "127.0.0.1", Some(9), Some(1)),
        ),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_JOB_ID=7 SLURM_STEPID=0 \
             SLURM_NODELIST=b[2,4],c SLURM_TASKS_PER_NODE=1(x2)",
            (Slurm, [1, 2, 0, 1], "b2", None, Some(2)),
        ),
        (
            "SLURM_PROCID=4 SLURM_NTASKS=5 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_JOB_ID=7 SLURM_STEPID=0 \
             SLURM_NODELIST=b[2,4] SLURM_TASKS_PER_NODE=3,2",
            (Slurm, [4, 5, 1, 2], "b2", None, None),
        ),
        // What srun of Slurm 22.05 sets for a step of `-N 3 -n 5`; the last node looks as if all had one task.
        (
            "SLURM_PROCID=4 SLURM_NTASKS=5 SLURM_NPROCS=5 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_NNODES=3 SLURM_JOB_ID=2 \
             SLURM_JOBID=2 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=5 \
             SLURM_JOB_NODELIST=node[01-03] SLURM_STEP_NODELIST=node[01-03] SLURM_STEP_TASKS_PER_NODE=2(x2),1 \
             SLURM_TASKS_PER_NODE=2(x2),1",
            (Slurm, [4, 5, 0, 1], "node01", None, Some(5)),
        ),
        ("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0", (Slurm, [0, 1, 0, 1], "127.0.0.1", None, Some(1))),
        // A launcher started by another: the inner one counts.
        (
            "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 \
             OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=3",
            (OpenMpi, [1, 2, 1, 2], "127.0.0.1", Some(3), Some(1)),
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.2 MASTER_PORT=3",
            (Torchrun, [1, 2, 1, 2], "127.0.0.2", Some(3), Some(1)),
        ),
    ];
    for (variables, (launcher, ranks, host, port, nodes)) in cases {
        let found = found(variables);
        assert_eq!(found.launcher, launcher, "{variables}");
        let numbers = [found.rank, found.world_size, found.local_rank, found.local_world_size];
        assert_eq!(numbers, ranks, "{variables}");
        assert_eq!(found.master.host, host, "{variables}");
        match port {
            Some(port) => assert_eq!(found.master.port, port, "{variables}"),
            None => assert!((20_000..30_000).contains(&found.master.port), "{variables}: {found}"),
        }
        assert_eq!(found.nodes(), nodes, "{variables}");
        assert_eq!(found.node_of(found.rank), nodes.map(|_| found.rank / found.local_world_size));
        assert_eq!(found.node_of(found.world_size), None);
        assert!(found.to_string().contains(&launcher.to_string()), "{found}");
    }
}

#[test]
fn nothing_is_found_where_there_is_nothing() {
    // A batch script is no task: it starts them.
    let batch = "SLURM_JOB_ID=3 SLURM_JOBID=3 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_NPROCS=4 \
                 SLURM_NNODES=2 SLURM_JOB_NODELIST=node[01-02] SLURM_TASKS_PER_NODE=2(x2)";
    for variables in
        ["", "MASTER_ADDR=n MASTER_PORT=1", "SLURM_JOB_ID=7 SLURM_NTASKS=4", "RANK= WORLD_SIZE=", batch]
    {
        assert_eq!(detect(variables), Ok(None), "{variables}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_value() {
    let local = "MASTER_ADDR=127.0.0.1 MASTER_PORT=1";
    let mpi = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0";
    let cases: [(String, &[&str]); 21] = [
        (format!("RANK=abc WORLD_SIZE=2 {local}"), &["RANK is `abc`", "a number"]),
        (format!("RANK=-1 WORLD_SIZE=2 {local}"), &["RANK is `-1`"]),
        (format!("RANK=0 WORLD_SIZE=0 {local}"), &["WORLD_SIZE is `0`", "1 or more"]),
        (format!("RANK=2 WORLD_SIZE=2 {local}"), &["RANK is 2", "WORLD_SIZE is 2"]),
        (format!("RANK=0 {local}"), &["RANK is set but WORLD_SIZE is not"]),
        (format!("WORLD_SIZE=2 {local}"), &["WORLD_SIZE is set but RANK is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1".into(), &["MASTER_ADDR is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1".into(), &["MASTER_PORT is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=0".into(), &["MASTER_PORT is `0`", "a port"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=70000".into(), &["MASTER_PORT is `70000`"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=far MASTER_PORT=1".into(), &["LOCAL_WORLD_SIZE is not"]),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=far MASTER_PORT=1".into(),
            &["LOCAL_RANK is not"],
        ),
        (
            format!("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3 {local}"),
            &["LOCAL_WORLD_SIZE is 3", "2 ranks"],
        ),
        (
            format!("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 {local}"),
            &["LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"],
        ),
        (format!("{mpi} OMPI_COMM_WORLD_LOCAL_SIZE=4"), &["OMPI_COMM_WORLD_RANK is not", "mpirun"]),
        (format!("{mpi} OMPI_COMM_WORLD_RANK=0"), &["OMPI_COMM_WORLD_LOCAL_SIZE is not"]),
        (
            format!("{mpi} OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2"),
            &["several nodes", "MASTER_ADDR"],
        ),
        (format!("{mpi} OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=4"), &["MASTER_PORT", "no id"]),
        ("SLURM_PROCID=0 SLURM_LOCALID=0".into(), &["SLURM_NTASKS is not", "srun"]),
        (
            "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_TASKS_PER_NODE=x".into(),
            &["SLURM_TASKS_PER_NODE is `x`"],
        ),
        (SLURM.replace("gpu[", "gpu"), &["SLURM_STEP_NODELIST is `gpu008-009]`", "list of nodes"]),
    ];
    for (variables, expected) in cases {
        let error = match detect(&variables) {
            Err(error) => error.to_string(),
            Ok(found) => panic!("{variables}: {found:?}"),
        };
        for part in expected {
            assert!(error.contains(part), "{variables}: {error}");
        }
    }
}

#[test]
fn all_ranks_of_a_job_agree_and_other_jobs_differ() {
    let of = |variables: &str| {
        let found = found(variables);
        (found.token, found.master)
    };
    for (variables, rank, other_rank, id, other_id) in [
        (MPI, "_RANK=1", "_RANK=0", "prterun-17@1", "prterun-17@2"),
        (SLURM, "PROCID=5", "PROCID=6", "JOB_ID=77", "JOB_ID=78"),
        (SLURM, "LOCALID=1", "LOCALID=2", "STEP_ID=0", "STEP_ID=1"),
        (TORCHRUN, "RANK=3 W", "RANK=1 W", "=29500", "=29500 TORCHELASTIC_RUN_ID=x"),
        (TORCHRUN, "RANK=3 W", "RANK=1 W", "=29500", "=29500 TORCHELASTIC_RESTART_COUNT=1"),
    ] {
        assert_ne!(variables.replace(rank, other_rank), variables);
        assert_eq!(of(&variables.replace(rank, other_rank)), of(variables), "{variables}");
        assert_ne!(of(&variables.replace(id, other_id)).0, of(variables).0, "{variables}");
    }
    let given = found(&format!("{TORCHRUN} FLUX_TOKEN=secret"));
    assert_eq!(given.token, b"secret");
    assert!(!format!("{given:?} {given} {:?}", given.rendezvous("b")).contains("secret"));
}

#[test]
fn it_becomes_a_rendezvous() {
    let spec = found(TORCHRUN).rendezvous("build 1");
    assert_eq!((spec.rank, spec.world_size, spec.host.as_str(), spec.port), (3, 4, "node-a", 29_500));
    assert!(spec.several_nodes && spec.build == "build 1");
    assert!(!found(MPI).rendezvous("").several_nodes);
}

proptest! {
    #[test]
    fn no_values_panic(values in proptest::collection::vec("[0-9a-z\\[\\],.()-]{0,6}", 24)) {
        let names = [
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FLUX_PORT",
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
            "SLURM_NODEID", "SLURM_NNODES", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST",
            "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "FLUX_TOKEN", "TORCHELASTIC_RUN_ID",
        ];
        // Each launcher's variables alone, or the first would hide the others.
        for prefix in ["", "OMPI", "SLURM"] {
            let lookup = |name: &str| {
                let at = names.iter().position(|known| *known == name)?;
                name.starts_with(prefix).then(|| values[at].clone())
            };
            if let Ok(Some(found)) = LaunchEnvironment::detect(lookup) {
                prop_assert!(found.rank < found.world_size && found.local_rank < found.local_world_size);
                let _ = (found.nodes(), found.node_of(0));
            }
        }
    }
}
