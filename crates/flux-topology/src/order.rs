//! In which order ranks should exchange their shards, by what connects them.

use std::fmt;

use crate::{Link, LinkKind, NumaBasis, NumaGroups, Topology, ring};

/// The class of orders in which ranks exchange their shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommunicationOrder {
    /// `full-mesh`: all peers at once, each rank starting with the one after itself.
    FullMesh,
    /// `ring`: each rank passes on to its neighbour what it got from the other.
    Ring,
    /// `two-level`: rings (or meshes) within groups, and each shard crosses between two groups once.
    TwoLevel,
    /// `none`: there is nobody to exchange with.
    None,
}

impl CommunicationOrder {
    /// `full-mesh`, `ring`, `two-level` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            CommunicationOrder::FullMesh => "full-mesh",
            CommunicationOrder::Ring => "ring",
            CommunicationOrder::TwoLevel => "two-level",
            CommunicationOrder::None => "none",
        }
    }
}

impl fmt::Display for CommunicationOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The order that fits a topology, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderChoice {
    /// The class of orders.
    pub order: CommunicationOrder,
    /// The GPUs that belong together, ascending: by machine (or rack, where NVLink joins machines), else by NUMA node; one
    /// group for a full mesh.
    pub groups: Vec<Vec<usize>>,
    /// All GPUs as they stand in a ring: group by group, neighbours as near as can be.
    pub sequence: Vec<usize>,
    /// A ring that uses only pairs with the most NVLinks, where there is one and not every pair has NVLink.
    pub strongest_ring: Option<Vec<usize>>,
    /// Why, in plain words.
    pub reason: String,
    argument: String,
    all_gather: &'static str,
    reduce_scatter: &'static str,
}

impl OrderChoice {
    /// The order as flux takes it, by `--order` and as `flux::Order`: `full-mesh`, or whose neighbour is who, like
    /// `ring:0-3/4-7` or `mesh:0-3+mesh:4-7`; `auto` where there is nobody to exchange with. A rank runs on the GPU of its number.
    pub fn argument(&self) -> &str {
        &self.argument
    }

    /// What an AllGather does in this order, in plain words.
    pub fn all_gather(&self) -> &'static str {
        self.all_gather
    }

    /// What a ReduceScatter does in this order, in plain words.
    pub fn reduce_scatter(&self) -> &'static str {
        self.reduce_scatter
    }
}

impl Topology {
    /// The order in which ranks on these GPUs, one on each, should exchange their shards.
    ///
    /// A full mesh where every two GPUs are connected by NVLink and no peer access is denied; else two levels
    /// where the GPUs are of several [domains](Topology::domains), or of exactly two NUMA nodes, with equally many in
    /// each; else a ring in the order of the NUMA nodes.
    pub fn order(&self) -> OrderChoice {
        let numa = self.numa_groups();
        let domains = self.domains();
        let (order, groups, reason) = match self.device_count() {
            0 => (CommunicationOrder::None, Vec::new(), "there is no GPU".to_owned()),
            1 => (
                CommunicationOrder::None,
                vec![vec![0]],
                "there is one GPU, and nobody to talk to".to_owned(),
            ),
            _ => self.choose(&domains, &numa),
        };
        let sequence = match order {
            CommunicationOrder::FullMesh => (0..self.device_count()).collect(),
            _ if domains.len() < 2 => ring::sequence(self, &groups),
            _ => {
                let nodes: Vec<_> = domains.iter().flat_map(|domain| within(domain, &numa.groups)).collect();
                ring::sequence(self, &nodes)
            }
        };
        let strongest_ring = match order {
            CommunicationOrder::Ring | CommunicationOrder::TwoLevel => ring::strongest(self),
            _ => None,
        };
        let (all_gather, reduce_scatter) = self.in_words(order, &domains, &groups);
        let argument = self.argument(order, &domains, &numa.groups, &sequence);
        OrderChoice { order, groups, sequence, strongest_ring, reason, argument, all_gather, reduce_scatter }
    }

    fn choose(
        &self,
        domains: &[Vec<usize>],
        numa: &NumaGroups,
    ) -> (CommunicationOrder, Vec<Vec<usize>>, String) {
        let count = self.device_count();
        let pairs = || (0..count).flat_map(|a| (0..count).filter(move |&b| b != a).map(move |b| (a, b)));
        let slow = pairs().filter(|&(a, b)| !self.is_fast(a, b)).count();
        if slow == 0 {
            let through = match self.nvswitch() {
                Some(true) => " through NVSwitch",
                Some(false) => ", without a switch",
                None => "",
            };
            let reason =
                format!("every GPU reaches every other over NVLink{through}: all can send to all at once");
            return (CommunicationOrder::FullMesh, vec![(0..count).collect()], reason);
        }
        let missing = self.why_no_mesh(slow / 2 + slow % 2);
        if domains.len() > 1 {
            // A machine is one, and so are those that NVLink joins.
            let (these, one) = match domains.len() == self.machines().len() {
                true => ("machines", "machine"),
                false => ("NVLink domains", "domain"),
            };
            return match equal_sizes(domains) {
                Some(size) => {
                    let reason = format!(
                        "{missing}, and the GPUs are of {} {these} with {size} each: the network is the narrowest \
                         link, so each shard crosses it once and is handed on within the {one}",
                        domains.len()
                    );
                    (CommunicationOrder::TwoLevel, domains.to_vec(), reason)
                }
                None => {
                    let reason = format!(
                        "{missing}, and the {these} have different numbers of GPUs ({})",
                        sizes(domains)
                    );
                    (CommunicationOrder::Ring, domains.to_vec(), reason)
                }
            };
        }
        let (groups, known) = (numa.groups.clone(), how_known(numa.basis));
        match (groups.len(), equal_sizes(&groups)) {
            (2, Some(size)) => {
                let reason = format!(
                    "{missing}, and the GPUs are on two NUMA nodes with {size} each{known}: a shard crosses between \
                     the nodes once, and the rest of its way stays within a node"
                );
                (CommunicationOrder::TwoLevel, groups, reason)
            }
            (1, _) => {
                let reason = format!("{missing}, and all GPUs are on one NUMA node{known}");
                (CommunicationOrder::Ring, groups, reason)
            }
            (2, None) => {
                let reason = format!(
                    "{missing}, and two NUMA nodes have different numbers of GPUs ({}){known}",
                    sizes(&groups)
                );
                (CommunicationOrder::Ring, groups, reason)
            }
            (nodes, _) => {
                let reason = format!(
                    "{missing}, and the GPUs are on {nodes} NUMA nodes{known}: two levels are for exactly two, so \
                     one ring goes from node to node"
                );
                (CommunicationOrder::Ring, groups, reason)
            }
        }
    }

    fn why_no_mesh(&self, slow_pairs: usize) -> String {
        let count = self.device_count();
        let all = count * (count - 1) / 2;
        let indices = 0..count;
        let denied = indices.clone().any(|a| {
            indices.clone().any(|b| {
                let nvlink = |link: &&Link| link.kind == LinkKind::NvLink && link.p2p.access.is_denied();
                self.link(a, b).filter(nvlink).is_some()
            })
        });
        match denied {
            true => format!(
                "the driver denies peer access on NVLink, so {slow_pairs} of {all} pairs cannot use it"
            ),
            false if slow_pairs == all => "no pair has NVLink".to_owned(),
            false => format!("{slow_pairs} of {all} pairs have no NVLink"),
        }
    }

    /// Whether these are several groups of GPUs, and in each every two are connected by NVLink.
    fn are_islands(&self, groups: &[Vec<usize>]) -> bool {
        groups.len() > 1 && groups.iter().all(|group| group.len() > 1 && self.is_mesh(group))
    }

    fn argument(
        &self,
        order: CommunicationOrder,
        domains: &[Vec<usize>],
        numa: &[Vec<usize>],
        sequence: &[usize],
    ) -> String {
        // In a mesh it does not matter who is next to whom. What crosses to another goes to the GPU that has the same
        // place there, and by number that is the one that NVLink connects, where there is one, as on DGX-1.
        let mesh = |group: &Vec<usize>| format!("mesh:{}", ranges(group.iter().copied()));
        let part = |domain: &Vec<usize>| -> String {
            let nodes: Vec<Vec<usize>> = within(domain, numa).collect();
            if self.is_mesh(domain) {
                mesh(domain)
            } else if self.are_islands(&nodes) {
                nodes.iter().map(mesh).collect::<Vec<_>>().join("+")
            } else {
                let ring =
                    |node: &Vec<usize>| ranges(sequence.iter().copied().filter(|gpu| node.contains(gpu)));
                format!("ring:{}", nodes.iter().map(ring).collect::<Vec<_>>().join("/"))
            }
        };
        let nested = |text: String| if text.contains('+') { format!("({text})") } else { text };
        match order {
            CommunicationOrder::None => "auto".to_owned(),
            CommunicationOrder::FullMesh => "full-mesh".to_owned(),
            CommunicationOrder::Ring => format!("ring:{}", ranges(sequence.iter().copied())),
            CommunicationOrder::TwoLevel => match domains {
                [one] => part(one),
                _ => domains.iter().map(part).map(nested).collect::<Vec<_>>().join("+"),
            },
        }
    }

    fn in_words(
        &self,
        order: CommunicationOrder,
        domains: &[Vec<usize>],
        groups: &[Vec<usize>],
    ) -> (&'static str, &'static str) {
        let joins_meshes = domains.len() > 1 && domains.iter().all(|domain| self.is_mesh(domain));
        match order {
            CommunicationOrder::FullMesh => (
                "each rank sends its shard to all peers, starting with the rank after itself, so that no two start \
                 with the same one; tiles are computed in the order in which shards arrive, the own one first",
                "rank r computes the tiles of rank r + 1 first and its own last, so that no two ranks send to the \
                 same one at once",
            ),
            CommunicationOrder::Ring => (
                "each rank passes a shard on to its neighbour in the ring as soon as it has it; the own shard is \
                 computed first, then the others as they arrive",
                "tiles for the next rank in the ring are computed first, and the own ones last; each rank's partial sums go \
                 straight to the rank that owns the rows, which adds them in rank order",
            ),
            CommunicationOrder::TwoLevel if joins_meshes => (
                "transfers over the network start first; each shard that arrives is handed on to all GPUs that NVLink \
                 connects, while the next one travels",
                "tiles that cross the network are computed first, and cross it while the others are computed; each \
                 rank's partial sums go straight to the rank that owns the rows",
            ),
            CommunicationOrder::TwoLevel if domains.len() > 1 => (
                "shards cross between NUMA nodes first; then they go on within each node, together with what comes from \
                 other machines",
                "tiles for other machines are computed first, and the own ones last; each rank's partial sums go straight \
                 to the rank that owns the rows",
            ),
            CommunicationOrder::TwoLevel if self.are_islands(groups) => (
                "each shard crosses to the other NUMA node once, first of all, to the GPU that has the same place there; \
                 NVLink hands it on to all others of the node",
                "tiles for the other NUMA node are computed first, and the own ones last; each rank's partial sums go \
                 straight to the rank that owns the rows, which adds them in rank order",
            ),
            CommunicationOrder::TwoLevel => (
                "a ring within each NUMA node; each shard crosses to the other node once, first of all, and goes \
                 round there",
                "tiles for the next rank in the ring are computed first, and the own ones last; each rank's partial sums go \
                 straight to the rank that owns the rows, which adds them in rank order",
            ),
            CommunicationOrder::None => ("there is nothing to gather", "there is nothing to scatter"),
        }
    }
}

/// What NUMA nodes have of a domain.
fn within<'a>(domain: &'a [usize], nodes: &'a [Vec<usize>]) -> impl Iterator<Item = Vec<usize>> + 'a {
    let inside = |gpu: &&usize| domain.binary_search(gpu).is_ok();
    let parts = nodes.iter().map(move |node| node.iter().filter(inside).copied().collect::<Vec<_>>());
    parts.filter(|part| !part.is_empty())
}

fn how_known(basis: NumaBasis) -> &'static str {
    match basis {
        NumaBasis::Stated => "",
        NumaBasis::CpuLists => " (inferred from the CPUs that they are near)",
        NumaBasis::Distance => " (inferred from which of them are SYS apart)",
        NumaBasis::Unknown => " as far as is known",
    }
}

/// `0-3,5`
pub(crate) fn ranges(gpus: impl Iterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for gpu in gpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == gpu => *last = gpu,
            _ => runs.push((gpu, gpu)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn equal_sizes(groups: &[Vec<usize>]) -> Option<usize> {
    let size = groups.first()?.len();
    groups.iter().all(|group| group.len() == size).then_some(size)
}

fn sizes(groups: &[Vec<usize>]) -> String {
    groups.iter().map(|group| group.len().to_string()).collect::<Vec<_>>().join(" + ")
}
