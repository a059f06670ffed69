//! What the order that fits a topology does on its links, of any topology.

use flux_swizzle::{Collective, Pattern, Schedule, Transfer};
use flux_topology::{CommunicationOrder, Device, Link, LinkKind, P2pStatus, Topology};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How the GPUs of a machine, and the machines, are connected.
#[derive(Clone, Copy, Debug)]
enum Fabric {
    Pcie,
    /// NVLinks between some pairs.
    Bridges,
    /// NVLinks within each NUMA node.
    Islands,
    NvLink,
    /// Machines are joined by NVLink two by two.
    Racks,
    /// Nobody knows.
    Unknown,
}

#[derive(Clone, Debug)]
struct Sketch {
    /// The sizes of the NUMA nodes of each machine.
    machines: Vec<Vec<usize>>,
    fabric: Fabric,
    numa_is_stated: bool,
    /// Bridges between some, and where numbers come from if GPUs are not numbered machine by machine.
    random: Vec<u16>,
    is_shuffled: bool,
    /// The driver denies the access of this one to that one.
    denied: Option<(usize, usize)>,
}

fn sketches() -> impl Strategy<Value = Sketch> {
    use Fabric::{Bridges, Islands, NvLink, Pcie, Racks, Unknown};
    let machine = prop_oneof![
        2 => Just(vec![2, 2]),
        1 => Just(vec![4]),
        2 => proptest::collection::vec(1usize..4, 1..4),
    ];
    let machines = prop_oneof![
        // Machines of one kind.
        (machine.clone(), 1usize..5).prop_map(|(machine, times)| vec![machine; times]),
        proptest::collection::vec(machine, 1..4),
    ];
    let fabric = prop::sample::select(vec![Pcie, Bridges, Islands, NvLink, Racks, Unknown]);
    let denied = prop::option::weighted(0.2, (0usize..8, 0usize..8));
    let random = proptest::collection::vec(any::<u16>(), 64);
    (machines, fabric, any::<bool>(), random, prop::bool::weighted(0.3), denied).prop_map(
        |(machines, fabric, numa_is_stated, random, is_shuffled, denied)| Sketch {
            machines,
            fabric,
            numa_is_stated,
            random,
            is_shuffled,
            denied,
        },
    )
}

impl Sketch {
    fn topology(&self) -> Topology {
        // The machine and the NUMA node of each GPU.
        let mut places: Vec<(usize, usize)> = Vec::new();
        for (host, nodes) in self.machines.iter().enumerate() {
            places.extend(nodes.iter().enumerate().flat_map(|(node, &gpus)| vec![(host, node); gpus]));
        }
        if self.is_shuffled {
            let mut keyed: Vec<_> = self.random.iter().zip(&places).collect();
            keyed.sort();
            places = keyed.into_iter().map(|(_, &place)| place).collect();
        }
        let device = |&(host, node): &(usize, usize)| {
            let mut device = Device::new("GPU");
            device.host = host;
            device.numa_node = self.numa_is_stated.then(|| u32::try_from(node).unwrap());
            device
        };
        let link = |from: usize, to: usize| {
            let ((host, node), (to_host, to_node)) = (places[from], places[to]);
            let is_bridged = self.random[(from * to + from + to) % 64].is_multiple_of(3);
            let nvlink = match self.fabric {
                Fabric::Pcie | Fabric::Unknown => false,
                Fabric::Bridges => host == to_host && is_bridged,
                Fabric::Islands => (host, node) == (to_host, to_node),
                Fabric::NvLink => host == to_host,
                Fabric::Racks => host / 2 == to_host / 2,
            };
            let mut link = match (host == to_host, node == to_node) {
                _ if nvlink => Link::nvlink(4),
                (false, _) => Link::pcie(LinkKind::Network, P2pStatus::NotSupported),
                _ if matches!(self.fabric, Fabric::Unknown) => Link::unknown(),
                (true, true) => Link::pcie(LinkKind::NumaNode, P2pStatus::Ok),
                (true, false) => Link::pcie(LinkKind::System, P2pStatus::Ok),
            };
            if self.denied == Some((from, to)) {
                link.p2p.access = P2pStatus::NotSupported;
            }
            link
        };
        Topology::new("sketch", places.iter().map(device).collect(), link)
    }
}

fn is_nvlink(topology: &Topology, from: usize, to: usize) -> bool {
    let link = topology.link(from, to).unwrap();
    link.kind == LinkKind::NvLink && !link.p2p.access.is_denied()
}

/// Within a mesh all goes by NVLink; in a ring a step uses only neighbours; between parts anything may be.
fn check_steps(topology: &Topology, pattern: &Pattern, transfers: &[Transfer]) {
    match pattern {
        Pattern::Nested(parts) => parts.iter().for_each(|part| check_steps(topology, part, transfers)),
        Pattern::Mesh(ranks) => {
            let within = |of: &&Transfer| ranks.contains(&of.source) && ranks.contains(&of.destination);
            for of in transfers.iter().filter(within) {
                assert!(is_nvlink(topology, of.source, of.destination), "{of:?} of {pattern}");
            }
        }
        Pattern::Ring(groups) => {
            let ring = groups.concat();
            let before = |place: usize| (place + ring.len() - 1) % ring.len();
            let mut neighbours: BTreeSet<(usize, usize)> =
                (0..ring.len()).map(|place| (ring[place], ring[before(place)])).collect();
            // Rings within the groups are closed as well.
            neighbours.extend(groups.iter().map(|group| (group[0], group[group.len() - 1])));
            let within = |of: &&Transfer| ring.contains(&of.source) && ring.contains(&of.destination);
            for of in transfers.iter().filter(within) {
                assert!(neighbours.contains(&(of.source, of.destination)), "{of:?} of {pattern}");
            }
        }
    }
}

fn check(topology: &Topology) -> CommunicationOrder {
    let (choice, ranks) = (topology.order(), topology.device_count());
    let pattern: Pattern = match choice.argument() {
        "auto" => {
            assert!(ranks < 2);
            return choice.order;
        }
        "full-mesh" => Pattern::full_mesh(ranks),
        argument => argument.parse().unwrap(),
    };
    assert_eq!(pattern.world_size(), Ok(ranks), "{pattern}");
    match choice.order {
        CommunicationOrder::Ring => assert_eq!(pattern, Pattern::Ring(vec![choice.sequence.clone()])),
        CommunicationOrder::TwoLevel => assert!(choice.groups.len() > 1, "{pattern}"),
        _ => {}
    }
    let schedule = Schedule::new(Collective::AllGather, &pattern, |_| 2).unwrap();
    assert_eq!(schedule.transfers().len(), ranks * (ranks - 1) * 2, "{pattern}");
    check_steps(topology, &pattern, schedule.transfers());

    // Machines, or racks; and the NUMA nodes in them.
    let domains = topology.domains();
    let nodes = topology.numa_groups().groups;
    let shared = |domain: &Vec<usize>, node: &Vec<usize>| -> BTreeSet<usize> {
        domain.iter().copied().filter(|gpu| node.contains(gpu)).collect()
    };
    let mut enclosures: Vec<BTreeSet<usize>> =
        domains.iter().map(|of| of.iter().copied().collect()).collect();
    enclosures.extend(domains.iter().flat_map(|domain| nodes.iter().map(|node| shared(domain, node))));
    for inside in enclosures {
        let mut entered: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for of in schedule.transfers() {
            let enters = !inside.contains(&of.source) && inside.contains(&of.destination);
            if enters && !is_nvlink(topology, of.source, of.destination) {
                *entered.entry((of.shard, of.chunk)).or_default() += 1;
            }
        }
        assert!(entered.values().all(|&times| times == 1), "{inside:?} of {pattern}: {entered:?}");
    }
    choice.order
}

/// Of any topology: a ring step uses only neighbours, a mesh only NVLinks, and no chunk crosses twice into a NUMA node or
/// a machine, but over NVLink.
#[test]
fn narrow_links_carry_each_chunk_once() {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(600)
    });
    let cases = std::cell::RefCell::new(&mut seen);
    runner
        .run(&sketches(), |sketch| {
            let order = check(&sketch.topology());
            *cases.borrow_mut().entry(order.name()).or_default() += 1;
            Ok(())
        })
        .unwrap();
    // What is drawn has all orders in it.
    for name in ["full-mesh", "ring", "two-level"] {
        assert!(seen.get(name).is_some_and(|&times| times > 30), "{seen:?}");
    }
}

#[test]
fn known_machines_carry_each_chunk_once() {
    for (name, nodes) in Topology::presets().flat_map(|name| [(name, 1), (name, 2)]) {
        // A rack has too many chunks for a test.
        if name != "gb200-nvl72" {
            check(&Topology::preset(name).unwrap().replicated(nodes).unwrap());
        }
    }
}
