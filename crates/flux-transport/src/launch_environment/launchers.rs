//! One function for each launcher.

use super::error::LaunchError;
use super::node_list::{expand, first_node, tasks_of_node};
use super::variables::{Variable, Variables};
use super::{LaunchEnvironment, Launcher, Master, digest};

const LOOPBACK: &str = "127.0.0.1";
const HOW_TO_LAUNCH: &str = "set both, or start the processes with torchrun, mpirun, srun or `flux launch`";
const SAY_WHERE: &str = "ranks are on several nodes: set MASTER_ADDR to a name or address of rank 0's node, the same for \
                         all ranks (and MASTER_PORT to a free port there)";
const SAY_LOCAL: &str = "rank 0 may be on another node: say which rank of its node each process is (LOCAL_RANK), and how many \
                         its node has (LOCAL_WORLD_SIZE)";

pub(super) fn detect(variables: &Variables<'_>) -> Result<Option<LaunchEnvironment>, LaunchError> {
    if variables.first(&["RANK", "WORLD_SIZE"]).is_some() {
        torchrun(variables).map(Some)
    } else if variables.first(&["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]).is_some() {
        open_mpi(variables).map(Some)
    } else if variables.get("SLURM_PROCID").is_some() && !is_batch_script(variables) {
        slurm(variables).map(Some)
    } else {
        Ok(None)
    }
}

/// Slurm tells a batch script, too, that it is task 0 of as many as were asked for; but nobody has started the others yet. What
/// srun starts belongs to a step of the job.
fn is_batch_script(variables: &Variables<'_>) -> bool {
    variables.first(&["SLURM_JOB_ID", "SLURM_JOBID"]).is_some()
        && variables.first(&["SLURM_STEP_ID", "SLURM_STEPID"]).is_none()
}

/// Ranks as a launcher numbers them, each number with the variable that says it.
struct Ranks {
    rank: (usize, &'static str),
    world_size: (usize, &'static str),
    local_rank: (usize, &'static str),
    local_world_size: (usize, &'static str),
}

impl Ranks {
    fn check(&self) -> Result<(), LaunchError> {
        let pairs = [(self.rank, self.world_size), (self.local_rank, self.local_world_size)];
        for ((value, variable), (bound, bound_variable)) in pairs {
            if value >= bound {
                return Err(LaunchError::OutOfRange { variable, value, bound_variable, bound });
            }
        }
        let ((value, variable), (world_size, _)) = (self.local_world_size, self.world_size);
        if value > world_size {
            return Err(LaunchError::LocalExceedsWorld { variable, value, world_size });
        }
        Ok(())
    }

    fn are_on_one_node(&self) -> bool {
        self.local_world_size.0 == self.world_size.0
    }

    /// With what the launcher calls the job, and where rank 0 is.
    fn complete(
        &self,
        launcher: Launcher,
        variables: &Variables<'_>,
        job: &str,
        master: Master,
    ) -> LaunchEnvironment {
        let token = match variables.get("FLUX_TOKEN") {
            Some(token) => token.value.into_bytes(),
            None => digest("token", job).to_vec(),
        };
        LaunchEnvironment {
            launcher,
            rank: self.rank.0,
            world_size: self.world_size.0,
            local_rank: self.local_rank.0,
            local_world_size: self.local_world_size.0,
            master,
            token,
        }
    }
}

fn torchrun(variables: &Variables<'_>) -> Result<LaunchEnvironment, LaunchError> {
    let rank = variables.need("RANK", "WORLD_SIZE", HOW_TO_LAUNCH)?.number()?;
    let world_size = variables.need("WORLD_SIZE", "RANK", HOW_TO_LAUNCH)?.count()?;
    let host = match variables.get("MASTER_ADDR") {
        Some(host) => host.value,
        None if world_size == 1 => LOOPBACK.to_owned(),
        None => return Err(missing("MASTER_ADDR", "RANK", HOW_TO_LAUNCH)),
    };
    // Who sets the variables by hand, on one machine, may leave out what is clear.
    let is_local = world_size == 1 || is_loopback(&host);
    let local_world_size = match variables.get("LOCAL_WORLD_SIZE") {
        Some(size) => (size.count()?, "LOCAL_WORLD_SIZE"),
        None if is_local => (world_size, "WORLD_SIZE"),
        None => return Err(missing("LOCAL_WORLD_SIZE", "RANK", SAY_LOCAL)),
    };
    let local_rank = match variables.get("LOCAL_RANK") {
        Some(local) => (local.number()?, "LOCAL_RANK"),
        None if local_world_size.0 == world_size => (rank, "RANK"),
        None => return Err(missing("LOCAL_RANK", "RANK", SAY_LOCAL)),
    };
    let ranks =
        Ranks { rank: (rank, "RANK"), world_size: (world_size, "WORLD_SIZE"), local_rank, local_world_size };
    ranks.check()?;

    let master_port = variables.get("MASTER_PORT");
    // After a restart, processes of the run before must not get in.
    let name = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"].map(|name| value(variables.get(name)));
    let job = format!("torchrun {} {} {}", name[0], name[1], value(master_port.clone()));
    let agent_listens_there = variables.is_true("TORCHELASTIC_USE_AGENT_STORE");
    let port = match (variables.get("FLUX_PORT"), master_port) {
        (Some(port), _) => port.port()?,
        (None, Some(port)) if !agent_listens_there => port.port()?,
        (None, Some(_)) => derived_port(&job),
        (None, None) if world_size == 1 => derived_port(&job),
        (None, None) => return Err(missing("MASTER_PORT", "RANK", HOW_TO_LAUNCH)),
    };
    Ok(ranks.complete(Launcher::Torchrun, variables, &job, Master { host, port }))
}

fn open_mpi(variables: &Variables<'_>) -> Result<LaunchEnvironment, LaunchError> {
    const RANK: &str = "OMPI_COMM_WORLD_RANK";
    const SIZE: &str = "OMPI_COMM_WORLD_SIZE";
    const LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
    const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
    const ADVICE: &str = "start the processes with mpirun, which sets both";
    let ranks = Ranks {
        rank: (variables.need(RANK, SIZE, ADVICE)?.number()?, RANK),
        world_size: (variables.need(SIZE, RANK, ADVICE)?.count()?, SIZE),
        local_rank: (variables.need(LOCAL_RANK, RANK, ADVICE)?.number()?, LOCAL_RANK),
        local_world_size: (variables.need(LOCAL_SIZE, RANK, ADVICE)?.count()?, LOCAL_SIZE),
    };
    ranks.check()?;
    let id = variables.first(&[
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
        "OMPI_MCA_orte_ess_jobid",
        "PMI_JOBID",
    ]);
    let job = format!("mpi {}", value(id.clone()));
    let host = match variables.get("MASTER_ADDR") {
        Some(host) => host.value,
        None if ranks.are_on_one_node() => LOOPBACK.to_owned(),
        None => return Err(missing("MASTER_ADDR", RANK, SAY_WHERE)),
    };
    const NO_ID: &str =
        "the job has no id to choose a port by: set MASTER_PORT to a free port, the same for all ranks";
    let port = match variables.first(&["FLUX_PORT", "MASTER_PORT"]) {
        Some(port) => port.port()?,
        None if id.is_some() || ranks.world_size.0 == 1 => derived_port(&job),
        None => return Err(missing("MASTER_PORT", RANK, NO_ID)),
    };
    Ok(ranks.complete(Launcher::OpenMpi, variables, &job, Master { host, port }))
}

fn slurm(variables: &Variables<'_>) -> Result<LaunchEnvironment, LaunchError> {
    const RANK: &str = "SLURM_PROCID";
    const LOCAL_RANK: &str = "SLURM_LOCALID";
    const ADVICE: &str = "start the processes with srun, which sets both";
    let rank = variables.get(RANK).ok_or(missing(RANK, "SLURM_NTASKS", ADVICE))?.number()?;
    // A step may have fewer tasks than its job.
    let size = variables.first(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"]);
    let size = size.ok_or(missing("SLURM_NTASKS", RANK, ADVICE))?;
    let world_size = (size.count()?, size.name);
    let local_rank = (variables.need(LOCAL_RANK, RANK, ADVICE)?.number()?, LOCAL_RANK);

    let nodes = variables.first(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"]);
    let nodes = nodes.map(|nodes| nodes.count()).transpose()?;
    let list = variables.first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]);
    let tasks = variables.first(&["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]);
    let local_world_size = slurm_local_world_size(variables, world_size, nodes, list.as_ref(), tasks)?;
    let ranks = Ranks { rank: (rank, RANK), world_size, local_rank, local_world_size };
    ranks.check()?;

    let host = match (variables.get("MASTER_ADDR"), list) {
        (Some(host), _) => host.value,
        _ if ranks.are_on_one_node() => LOOPBACK.to_owned(),
        (None, Some(list)) => {
            first_node(&list.value).ok_or_else(|| list.bad("a list of nodes, as Slurm writes it"))?
        }
        (None, None) => return Err(missing("SLURM_STEP_NODELIST", RANK, SAY_WHERE)),
    };
    let id = variables.first(&["SLURM_JOB_ID", "SLURM_JOBID"]);
    let step = variables.first(&["SLURM_STEP_ID", "SLURM_STEPID"]);
    let job = format!("slurm {} {}", value(id.clone()), value(step));
    const NO_ID: &str =
        "the job has no id to choose a port by: set MASTER_PORT to a free port, the same for all ranks";
    let port = match variables.first(&["FLUX_PORT", "MASTER_PORT"]) {
        Some(port) => port.port()?,
        None if id.is_some() || world_size.0 == 1 => derived_port(&job),
        None => return Err(missing("SLURM_JOB_ID", RANK, NO_ID)),
    };
    Ok(ranks.complete(Launcher::Slurm, variables, &job, Master { host, port }))
}

/// Slurm says how many tasks each node has, and which node this is.
fn slurm_local_world_size(
    variables: &Variables<'_>,
    (world_size, size_name): (usize, &'static str),
    nodes: Option<usize>,
    list: Option<&Variable>,
    tasks: Option<Variable>,
) -> Result<(usize, &'static str), LaunchError> {
    const WANTED: &str = "numbers of tasks, as Slurm writes them, with one for this node (SLURM_NODEID)";
    const ADVICE: &str = "ranks are on several nodes, and nothing says how many are on this one: start them with srun, or set it";
    let is_one_node = nodes == Some(1)
        || nodes.is_none()
            && list.is_some_and(|list| expand(&list.value, 2).is_some_and(|names| names.len() == 1));
    match tasks {
        _ if is_one_node || world_size == 1 => Ok((world_size, size_name)),
        Some(tasks) => {
            let node = variables.get("SLURM_NODEID").map_or(Ok(0), |node| node.number())?;
            let local = tasks_of_node(&tasks.value, node).ok_or_else(|| tasks.bad(WANTED))?;
            Ok((local, tasks.name))
        }
        None if nodes.is_none() && list.is_none() => {
            // Nothing speaks of nodes: one, as when the variables are set by hand.
            Ok((world_size, size_name))
        }
        None => Err(missing("SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", ADVICE)),
    }
}

fn missing(missing: &'static str, present: &'static str, advice: &'static str) -> LaunchError {
    LaunchError::Missing { present, missing, advice }
}

fn value(variable: Option<Variable>) -> String {
    variable.map_or_else(String::new, |variable| variable.value)
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A port that follows from what a job is called: below those that systems give to outgoing connections.
fn derived_port(job: &str) -> u16 {
    let [low, high, ..] = digest("port", job);
    20_000 + u16::from_le_bytes([low, high]) % 10_000
}
