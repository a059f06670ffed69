//! Which GPUs no network lies between: those of a machine, or of several that NVLink joins.

use crate::{LinkKind, Topology};

impl Topology {
    /// The GPUs by NVLink domain: those of each machine, machines that NVLink joins taken as one, as in a rack of
    /// GB200. Joined are machines of which every two GPUs are connected by NVLink, with no access denied. Each domain
    /// is ascending; they stand in the order of their first machines.
    pub fn domains(&self) -> Vec<Vec<usize>> {
        // Beside each, whether it is a mesh: only such can be joined.
        let mut domains: Vec<(bool, Vec<usize>)> = Vec::new();
        for machine in self.machines() {
            let is_mesh = self.is_mesh(&machine);
            let joins = |(other_is_mesh, domain): &&mut (bool, Vec<usize>)| {
                is_mesh && *other_is_mesh && self.all_fast(domain, &machine)
            };
            match domains.iter_mut().find(joins) {
                Some((_, domain)) => domain.extend(machine),
                None => domains.push((is_mesh, machine)),
            }
        }
        let ascending = |(_, mut domain): (bool, Vec<usize>)| {
            domain.sort_unstable();
            domain
        };
        domains.into_iter().map(ascending).collect()
    }

    /// The GPUs of each machine that has any.
    pub(crate) fn machines(&self) -> Vec<Vec<usize>> {
        let mut machines = vec![Vec::new(); self.host_count()];
        for (index, device) in self.devices().iter().enumerate() {
            if let Some(machine) = machines.get_mut(device.host) {
                machine.push(index);
            }
        }
        machines.retain(|machine| !machine.is_empty());
        machines
    }

    /// Whether every two of these GPUs are connected by NVLink, and no access is denied. True of one.
    pub(crate) fn is_mesh(&self, gpus: &[usize]) -> bool {
        self.all_fast(gpus, gpus)
    }

    /// Whether data goes from one GPU to another by NVLink.
    pub(crate) fn is_fast(&self, from: usize, to: usize) -> bool {
        let fast = |link: &crate::Link| link.kind == LinkKind::NvLink && !link.p2p.access.is_denied();
        self.link(from, to).is_some_and(fast)
    }

    fn all_fast(&self, some: &[usize], others: &[usize]) -> bool {
        let both_ways = |a, b| a == b || (self.is_fast(a, b) && self.is_fast(b, a));
        some.iter().all(|&a| others.iter().all(|&b| both_ways(a, b)))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Link, LinkKind, P2pStatus, Topology};

    fn domains(hosts: &[usize], link: impl Fn(usize, usize) -> Link) -> String {
        let devices = hosts.iter().map(|&host| Device { host, ..Device::new("GPU") }).collect();
        let domains = Topology::new("test", devices, link).domains();
        let text = |domain: &Vec<usize>| domain.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        domains.iter().map(text).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn nvlink_joins_machines() {
        let net = || Link::pcie(LinkKind::Network, P2pStatus::NotSupported);
        let racks = |from: usize, to: usize| if from / 4 == to / 4 { Link::nvlink(18) } else { net() };
        assert_eq!(domains(&[0, 0, 1, 1, 2, 2, 3, 3], racks), "0 1 2 3 | 4 5 6 7");
        // Numbered in turns.
        let turns = |from: usize, to: usize| if from % 2 == to % 2 { Link::nvlink(18) } else { net() };
        assert_eq!(domains(&[0, 2, 0, 2, 1, 3, 1, 3], turns), "0 2 4 6 | 1 3 5 7");
        // One way is no way, and nor is one that the driver denies.
        let one_way = |from: usize, to: usize| if (from, to) == (3, 0) { net() } else { Link::nvlink(18) };
        assert_eq!(domains(&[0, 0, 1, 1], one_way), "0 1 | 2 3");
        let denied = |from: usize, to: usize| {
            let mut link = Link::nvlink(18);
            if from / 2 != to / 2 {
                link.p2p.access = P2pStatus::NotSupported;
            }
            link
        };
        assert_eq!(domains(&[0, 0, 1, 1], denied), "0 1 | 2 3");
        // Machines on PCIe are apart, whatever is between them.
        let pcie = |from: usize, to: usize| match from / 2 == to / 2 {
            true => Link::pcie(LinkKind::PcieSwitch, P2pStatus::Ok),
            false => Link::nvlink(4),
        };
        assert_eq!(domains(&[0, 0, 1, 1], pcie), "0 1 | 2 3");
        assert_eq!(domains(&[], pcie), "");
    }
}
