//! Which ranks live on which node, and which of them can address each other's memory.

use std::ops::Range;

/// The nodes of a group, and whether ranks of one node address each other's memory. Ranks of different nodes never do: what
/// goes between them is sent and received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Ranks count up node by node.
    nodes: Vec<Range<usize>>,
    within_nodes: bool,
}

impl Reach {
    /// All ranks on one node.
    pub fn one_node(world_size: usize) -> Self {
        Self::of(std::iter::once(0..world_size).collect())
    }

    /// So many nodes; if they cannot all have as many ranks, the first ones have one more. At least one, and none without
    /// ranks.
    pub fn split(world_size: usize, nodes: usize) -> Self {
        let nodes = nodes.clamp(1, world_size.max(1));
        let (each, more) = (world_size / nodes, world_size % nodes);
        let begin = |node: usize| node * each + node.min(more);
        Self::of((0..nodes).map(|node| begin(node)..begin(node + 1)).collect())
    }

    /// Nodes of these ranks: each begins where the one before ends, the first with rank 0.
    pub const fn of(nodes: Vec<Range<usize>>) -> Self {
        Self { nodes, within_nodes: true }
    }

    /// The same nodes, but no rank addresses another's memory, wherever it lives.
    #[must_use]
    pub fn without_addresses(self) -> Self {
        Self { within_nodes: false, ..self }
    }

    /// The same nodes, and the ranks of each address each other's memory.
    pub(crate) fn within_nodes(&self) -> Self {
        Self { within_nodes: true, ..self.clone() }
    }

    /// The ranks of each node, in order.
    pub fn nodes(&self) -> &[Range<usize>] {
        &self.nodes
    }

    /// The ranks of `rank`'s node; of a rank outside the group, none.
    pub fn node_of(&self, rank: usize) -> Range<usize> {
        self.nodes.iter().find(|node| node.contains(&rank)).cloned().unwrap_or(rank..rank)
    }

    /// The ranks whose memory `rank` can address, itself among them.
    pub fn of_rank(&self, rank: usize) -> Range<usize> {
        if self.within_nodes { self.node_of(rank) } else { rank..rank + 1 }
    }

    /// Whether `rank` can address the memory of `peer`, which may be itself.
    pub fn has(&self, rank: usize, peer: usize) -> bool {
        rank == peer || self.of_rank(rank).contains(&peer)
    }

    /// Whether all ranks can address the memory of all others.
    pub fn is_complete(&self) -> bool {
        let world_size = self.world_size();
        world_size < 2 || (self.within_nodes && self.nodes.len() == 1)
    }

    /// Ranks of each node, if all have as many.
    pub fn ranks_per_node(&self) -> Option<usize> {
        let ranks = self.nodes.first()?.len();
        self.nodes.iter().all(|node| node.len() == ranks).then_some(ranks)
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.nodes.last().map_or(0, |node| node.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_hold_all_ranks_once() {
        for world_size in 0..9 {
            for count in 0..10 {
                let reach = Reach::split(world_size, count);
                assert_eq!(reach.world_size(), world_size);
                let ranks: Vec<_> = reach.nodes().iter().cloned().flatten().collect();
                assert_eq!(ranks, (0..world_size).collect::<Vec<_>>());
                let sizes: Vec<_> = reach.nodes().iter().map(Range::len).collect();
                assert!(sizes.windows(2).all(|pair| pair[0] - pair[1] < 2), "{sizes:?}");
                assert_eq!(reach.ranks_per_node().is_some(), sizes.windows(2).all(|pair| pair[0] == pair[1]));
            }
        }
    }

    #[test]
    fn only_ranks_of_one_node_address_each_other() {
        let reach = Reach::split(5, 2);
        assert_eq!(reach.nodes(), [0..3, 3..5]);
        assert!(reach.has(0, 2) && reach.has(3, 4) && reach.has(4, 4));
        assert!(!reach.has(2, 3) && !reach.has(0, 9) && !reach.is_complete());
        let apart = reach.without_addresses();
        assert!(apart.has(0, 0) && !apart.has(0, 1) && !apart.is_complete());
        assert!(Reach::one_node(4).is_complete() && Reach::one_node(1).without_addresses().is_complete());
    }
}
