//! In which order ranks exchange their shards: who sends what to whom, and so in which order tiles are computed.

use crate::{Error, Group, Placement, Result};
use flux_swizzle::{BadPattern, Pattern};
use flux_transport::Direction;
use std::str::FromStr;

/// In which order ranks exchange their shards. `docs/orders.md` says what each order is, and when it is worth it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// What was measured to be the fastest, or fits what connects the ranks ([`crate::Explain::order`]). Where nobody knows that, all
    /// of a node send to all, and between nodes a shard goes to one rank of each, which passes it on within its node. Only where
    /// shards are pushed, and ranks of a node address each other's device memory, are they passed on; elsewhere all send to all.
    #[default]
    Auto,
    /// All send to all.
    FullMesh,
    /// Each passes on to the rank before it what it has.
    Ring,
    /// As ranks are connected, in any way that there is a schedule for.
    Of(Pattern),
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Order::Auto => f.write_str("auto"),
            Order::FullMesh => f.write_str("full-mesh"),
            Order::Ring => f.write_str("ring"),
            Order::Of(pattern) => pattern.fmt(f),
        }
    }
}

/// `auto`, `full-mesh`, `ring`, or a pattern like `ring:0-3/4-7`.
impl FromStr for Order {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        Ok(match text {
            "auto" => Order::Auto,
            "full-mesh" => Order::FullMesh,
            "ring" => Order::Ring,
            _ => Order::Of(text.parse()?),
        })
    }
}

impl Order {
    /// How `world_size` ranks exchange their shards in this order; none for [`Order::Auto`], which depends on where they are.
    pub fn given(&self, world_size: usize) -> Result<Option<Pattern>> {
        Ok(match self {
            Order::Auto => None,
            Order::FullMesh => Some(Pattern::full_mesh(world_size)),
            Order::Ring => Some(Pattern::ring(world_size)),
            Order::Of(pattern) => match pattern.world_size()? {
                ranks if ranks == world_size => Some(pattern.clone()),
                ranks => return Err(Error::OtherOrder { order: self.to_string(), ranks, world_size }),
            },
        })
    }

    /// Whether ranks of a node pass on to each other what has come to them, if nobody asks for it.
    pub(crate) fn passes_on(group: &Group, direction: Direction) -> bool {
        let reach = group.members().space.reach();
        let addressed = reach.nodes().iter().all(|node| reach.of_rank(node.start) == *node);
        addressed && direction == Direction::Push && group.config().peer_memory == Placement::Device
    }

    /// How the ranks of `group` exchange their shards where nobody knows what connects them, moved by whom `direction` says, in this order.
    pub(crate) fn pattern(&self, group: &Group, direction: Direction) -> Result<Pattern> {
        let world_size = group.world_size();
        if let Some(given) = self.given(world_size)? {
            return Ok(given);
        }
        let passes_on = Self::passes_on(group, direction);
        Ok(match group.nodes() {
            nodes if nodes.len() > 1 && nodes.len() < world_size && passes_on => {
                Pattern::Nested(nodes.iter().map(|node| Pattern::Mesh(node.clone().collect())).collect())
            }
            _ => Pattern::full_mesh(world_size),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackendChoice, GroupConfig, Transport};
    use std::num::NonZeroUsize;

    fn group(world_size: usize, nodes: usize, transport: Transport, peer_memory: Placement) -> Group {
        let (backend, fake_nodes) = (BackendChoice::Host, NonZeroUsize::new(nodes));
        let config = GroupConfig { backend, fake_nodes, transport, peer_memory, ..GroupConfig::default() };
        Group::local_with(world_size, config).unwrap()
    }

    #[test]
    fn auto_is_by_nodes() {
        use {Direction::*, Placement::*, Transport as Via};
        for (world_size, nodes, via, memory, direction, expected) in [
            (3, 0, Via::Auto, Device, Push, "mesh:0-2"),
            (4, 2, Via::Auto, Device, Push, "mesh:0-1+mesh:2-3"),
            (5, 2, Via::Auto, Device, Push, "mesh:0-2+mesh:3-4"),
            (4, 2, Via::Auto, Device, Pull, "mesh:0-3"),
            (4, 2, Via::Auto, PinnedHost, Push, "mesh:0-3"),
            (4, 2, Via::Sockets, Device, Push, "mesh:0-3"),
            (4, 4, Via::Auto, Device, Push, "mesh:0-3"),
        ] {
            let group = group(world_size, nodes, via, memory);
            assert_eq!(Order::Auto.pattern(&group, direction).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["auto", "full-mesh", "ring", "ring:0-3/4-7", "mesh:0-1+mesh:2-3"] {
            assert_eq!(text.parse::<Order>().unwrap().to_string(), text);
        }
        assert!("star".parse::<Order>().unwrap_err().to_string().contains("star"));
        let group = group(3, 0, Transport::Auto, Placement::Device);
        let of_four = Order::Of(Pattern::ring(4)).pattern(&group, Direction::Push).unwrap_err();
        assert!(matches!(of_four, Error::OtherOrder { ranks: 4, world_size: 3, .. }), "{of_four}");
        let twice = Order::Of(Pattern::Mesh(vec![0, 0, 1])).pattern(&group, Direction::Push).unwrap_err();
        assert!(matches!(twice, Error::Swizzle(flux_swizzle::Error::RankTwice { rank: 0 })), "{twice}");
    }
}
