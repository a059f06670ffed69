//! Where the parts of a ReduceScatter go that is summed in two levels, or in one.

/// Which slots the ranks of a ReduceScatter have, and who writes to which, in one level or in two: of nodes with as many ranks each.
/// One level is that of a single node.
///
/// In two, the ranks of a node write what they have for an owner on another node to its *delegate*: the rank of their own node that has
/// its place there. The delegate sums that, and sends the sum, in rounds: in each, to the next node but so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    nodes: usize,
    per_node: usize,
}

/// A slot, by its number, of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// The rank.
    pub rank: usize,
    /// The slot's number.
    pub slot: usize,
}

impl SlotLayout {
    /// So many ranks, each of which sums what comes to it from all.
    pub fn one_level(world_size: usize) -> Self {
        Self { nodes: 1, per_node: world_size.max(1) }
    }

    /// So many nodes, each of so many ranks, in order.
    pub fn two_levels(nodes: usize, per_node: usize) -> Self {
        Self { nodes: nodes.max(1), per_node: per_node.max(1) }
    }

    /// How many nodes there are; in one level, one.
    pub const fn nodes(self) -> usize {
        self.nodes
    }

    /// Ranks of a node.
    pub const fn ranks_per_node(self) -> usize {
        self.per_node
    }

    /// In how many rounds delegates send.
    pub const fn rounds(self) -> usize {
        self.nodes - 1
    }

    /// Whether what goes to another node is summed before.
    pub const fn has_two_levels(self) -> bool {
        self.nodes > 1
    }

    /// The node of a rank.
    pub const fn node(self, rank: usize) -> usize {
        rank / self.per_node
    }

    /// The rank of `node` that has `rank`'s place there: its owner's delegate, or the owner.
    pub const fn partner(self, rank: usize, node: usize) -> usize {
        node.saturating_mul(self.per_node).saturating_add(rank % self.per_node)
    }

    /// The slots that a rank sums into its own rows, the first ones, in the order in which they are added.
    pub const fn sources(self) -> usize {
        self.per_node.saturating_add(self.nodes - 1)
    }

    /// All slots that have signals.
    pub const fn slots(self) -> usize {
        self.sources().saturating_add((self.nodes - 1).saturating_mul(self.per_node))
    }

    /// All slots, those among them that sums are sent from.
    pub const fn all_slots(self) -> usize {
        self.slots().saturating_add(self.nodes - 1)
    }

    /// Among the slots of `owner`'s own rows, where those of `rank` go, of its own node, or what is sum of `rank`'s node.
    pub const fn source(self, owner: usize, rank: usize) -> usize {
        let (own, node) = (self.node(owner), self.node(rank));
        if node < own {
            node
        } else if node == own {
            node + rank % self.per_node
        } else {
            node.saturating_add(self.per_node - 1)
        }
    }

    /// The rank from which a slot of `owner`'s own rows comes: `source` backwards.
    pub fn rank_of_source(self, owner: usize, slot: usize) -> usize {
        let own = self.node(owner);
        match slot {
            _ if slot < own => self.partner(owner, slot),
            _ if slot - own < self.per_node => (own * self.per_node).saturating_add(slot - own),
            _ => self.partner(owner, slot - (self.per_node - 1)),
        }
    }

    /// Among all nodes but `rank`'s, the place of `node`.
    pub const fn other(self, rank: usize, node: usize) -> usize {
        if node < self.node(rank) { node } else { node.saturating_sub(1) }
    }

    /// The first of the slots of `delegate` for its owner on `node`: one for each rank of its own node.
    pub const fn delegated(self, delegate: usize, node: usize) -> usize {
        self.sources().saturating_add(self.other(delegate, node).saturating_mul(self.per_node))
    }

    /// The slot of `delegate` that its sum for its owner on `node` is sent from.
    pub const fn sent(self, delegate: usize, node: usize) -> usize {
        self.slots().saturating_add(self.other(delegate, node))
    }

    /// Where `source`'s rows for `owner` go.
    pub const fn place(self, owner: usize, source: usize) -> SlotPlace {
        let rank = self.partner(owner, self.node(source));
        if rank == owner {
            return SlotPlace { rank, slot: self.source(owner, source) };
        }
        SlotPlace {
            rank,
            slot: self.delegated(rank, self.node(owner)).saturating_add(source % self.per_node),
        }
    }

    /// The owners whose rows go to `rank` in its own node: those whose delegate it is, as rounds have them, and itself.
    pub fn owners(self, rank: usize) -> impl Iterator<Item = usize> + Clone {
        (1..=self.nodes)
            .map(move |ahead| self.partner(rank, (self.node(rank) % self.nodes + ahead) % self.nodes))
    }

    /// Of a round, from 0, of [`rounds`](Self::rounds): whom `rank` sends a sum to, and who sends it one.
    pub const fn round(self, rank: usize, round: usize) -> (usize, usize) {
        let (own, ahead) = (self.node(rank) % self.nodes, round % self.nodes + 1);
        let to = self.partner(rank, (own + ahead) % self.nodes);
        (to, self.partner(rank, (own + self.nodes - ahead) % self.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeSet, vec::Vec};

    fn layouts() -> impl Iterator<Item = SlotLayout> {
        (1..5).flat_map(|nodes| (1..5).map(move |per_node| SlotLayout::two_levels(nodes, per_node)))
    }

    #[test]
    fn each_part_has_a_slot_of_its_own_in_its_node() {
        for layout in layouts() {
            let ranks = 0..layout.nodes * layout.per_node;
            let mut seen = BTreeSet::new();
            for (owner, source) in
                ranks.clone().flat_map(|owner| ranks.clone().map(move |rank| (owner, rank)))
            {
                let SlotPlace { rank, slot } = layout.place(owner, source);
                assert_eq!(layout.node(rank), layout.node(source));
                assert!(layout.owners(rank).any(|of| of == owner));
                assert!(slot < layout.slots() && seen.insert((rank, slot)));
                assert_eq!(rank == owner, slot < layout.sources());
            }
            // What else there is, sums come to.
            for (owner, node) in ranks.flat_map(|rank| (0..layout.nodes).map(move |node| (rank, node))) {
                if node != layout.node(owner) {
                    let slot = layout.source(owner, layout.partner(owner, node));
                    assert!(slot < layout.sources() && seen.insert((owner, slot)));
                }
            }
            assert_eq!(seen.len(), layout.nodes * layout.per_node * layout.slots());
        }
    }

    #[test]
    fn sources_are_in_the_order_of_ranks() {
        for layout in layouts() {
            for owner in 0..layout.nodes * layout.per_node {
                let ranks: Vec<_> =
                    (0..layout.sources()).map(|slot| layout.rank_of_source(owner, slot)).collect();
                assert!(ranks.is_sorted() && ranks.contains(&owner), "{layout:?} {owner}: {ranks:?}");
                for (slot, &rank) in ranks.iter().enumerate() {
                    assert_eq!(layout.source(owner, rank), slot);
                }
            }
        }
        let (one, two) = (SlotLayout::one_level(4), SlotLayout::two_levels(3, 2));
        assert_eq!((one, one.all_slots()), (SlotLayout::two_levels(1, 4), 4));
        assert_eq!((two.sources(), two.all_slots()), (2 + 2, 6 + 2 * 2));
    }

    #[test]
    fn rounds_meet() {
        for layout in layouts() {
            for rank in 0..layout.nodes * layout.per_node {
                let met = (0..layout.nodes - 1)
                    .map(|round| {
                        let (to, from) = layout.round(rank, round);
                        assert_eq!((layout.round(to, round).1, layout.round(from, round).0), (rank, rank));
                        to
                    })
                    .chain([rank]);
                assert!(met.eq(layout.owners(rank)));
            }
        }
    }
}
