//! What connects the ranks, as far as it decides who sends to whom.

use crate::Error;
use alloc::{vec, vec::Vec};

/// The most ranks that a pattern may have.
pub const MOST_RANKS: usize = 1 << 16;

/// How ranks that exchange shards are connected, and therefore which of them send to which.
///
/// In-node NVLink or NVSwitch is a [`Mesh`](Pattern::Mesh); PCIe is a [`Ring`](Pattern::Ring) of one group, or of one group
/// for each NUMA node. Where the way out of a group is narrower than what is within, be it between NVLink islands or between
/// machines, it is [`Nested`](Pattern::Nested).
///
/// Patterns of more than [`MOST_RANKS`] can be asked for, but are refused where they are used ([`Pattern::world_size`],
/// [`Schedule::new`](crate::Schedule::new)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Each rank sends its chunks to all others, one after the other, beginning next to itself.
    Mesh(Vec<usize>),
    /// Each rank passes on to its neighbour what it has. Only the first rank of a group sends to another group, the one before,
    /// and what has come to a group from outside never goes back to where it is from: it crosses each boundary once.
    Ring(Vec<Vec<usize>>),
    /// Each rank sends its chunks to one rank of every other part, and that one spreads them within its part.
    Nested(Vec<Pattern>),
}

impl Pattern {
    /// `world_size` ranks, all connected to all.
    pub fn full_mesh(world_size: usize) -> Self {
        Pattern::Mesh((0..too_many_at_most(world_size)).collect())
    }

    /// `world_size` ranks in one ring.
    pub fn ring(world_size: usize) -> Self {
        Pattern::Ring(vec![(0..too_many_at_most(world_size)).collect()])
    }

    /// Rings within NUMA nodes of these sizes, each followed by the next.
    pub fn two_level(sizes: &[usize]) -> Self {
        Pattern::Ring(groups(sizes, 0))
    }

    /// Islands of these sizes, all connected to all within.
    pub fn islands(sizes: &[usize]) -> Self {
        Pattern::Nested(groups(sizes, 0).into_iter().map(Pattern::Mesh).collect())
    }

    /// `nodes` machines that are each like `node`, whose ranks are 0, 1, … .
    pub fn nodes(nodes: usize, node: &Pattern) -> Self {
        let size = node.ranks().len();
        // As many nodes as make too many ranks.
        let nodes = nodes.min(MOST_RANKS / size.max(1) + 1);
        match nodes {
            1 => node.clone(),
            _ => Pattern::Nested((0..nodes).map(|index| node.shifted(index.saturating_mul(size))).collect()),
        }
    }

    /// The ranks, part by part.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Pattern::Mesh(ranks) => ranks.clone(),
            Pattern::Ring(groups) => groups.concat(),
            Pattern::Nested(parts) => parts.iter().flat_map(Pattern::ranks).collect(),
        }
    }

    /// How many ranks there are, if they are 0, 1, … in any order, each once.
    pub fn world_size(&self) -> Result<usize, Error> {
        let ranks = self.ranks();
        let world_size = ranks.len();
        if world_size > MOST_RANKS {
            return Err(Error::TooManyRanks { max: MOST_RANKS });
        }
        let mut seen = vec![false; world_size];
        for rank in ranks {
            match seen.get_mut(rank) {
                None => return Err(Error::RankOutOfRange { rank, world_size }),
                Some(true) => return Err(Error::RankTwice { rank }),
                Some(seen) => *seen = true,
            }
        }
        if world_size == 0 { Err(Error::NoRanks) } else { Ok(world_size) }
    }

    /// The sets of ranks that each chunk enters once from outside, at all levels.
    pub fn enclosures(&self) -> Vec<Vec<usize>> {
        match self {
            Pattern::Mesh(_) => Vec::new(),
            Pattern::Ring(groups) => groups.iter().filter(|group| !group.is_empty()).cloned().collect(),
            Pattern::Nested(parts) => {
                let parts = parts.iter().filter(|part| !part.ranks().is_empty());
                parts.flat_map(|part| core::iter::once(part.ranks()).chain(part.enclosures())).collect()
            }
        }
    }

    /// Where each rank is, from outside inwards: of each boundary the level and the lane of what crosses it, and the side that the
    /// rank is on.
    pub(crate) fn paths(&self) -> Vec<Vec<(usize, usize, usize)>> {
        let mut paths = vec![Vec::new(); self.ranks().len()];
        self.extend_paths(&mut paths);
        paths
    }

    fn extend_paths(&self, paths: &mut [Vec<(usize, usize, usize)>]) {
        match self {
            Pattern::Mesh(_) => {}
            Pattern::Ring(groups) => {
                for (side, group) in groups.iter().enumerate() {
                    group.iter().for_each(|&rank| paths[rank].push((1, 0, side)));
                }
            }
            Pattern::Nested(parts) => {
                let level = self.levels() - 1;
                for (side, part) in parts.iter().enumerate() {
                    part.ranks().into_iter().for_each(|rank| paths[rank].push((level, level, side)));
                    part.extend_paths(paths);
                }
            }
        }
    }

    /// The level and the lane of what goes straight between ranks with these paths.
    pub(crate) fn between(from: &[(usize, usize, usize)], to: &[(usize, usize, usize)]) -> (usize, usize) {
        let apart = from.iter().zip(to).find(|(from, to)| from != to);
        apart.map_or((0, 0), |(&(level, lane, _), _)| (level, lane))
    }

    /// How many kinds of boundaries there are between ranks, one inside the other.
    pub(crate) fn levels(&self) -> usize {
        match self {
            Pattern::Mesh(_) => 1,
            Pattern::Ring(groups) if groups.len() <= 1 => 1,
            Pattern::Ring(_) => 2,
            Pattern::Nested(parts) => 1 + parts.iter().map(Pattern::levels).max().unwrap_or(0),
        }
    }

    /// How many rounds it takes until what each part holds has come to each other part.
    pub(crate) fn phases(&self) -> usize {
        match self {
            Pattern::Mesh(_) | Pattern::Ring(_) => 1,
            Pattern::Nested(parts) => parts.len() * parts.iter().map(Pattern::phases).max().unwrap_or(1),
        }
    }

    /// The same without what has no ranks, and in the opposite order if `mirrored`.
    pub(crate) fn tidied(&self, mirrored: bool) -> Self {
        let turned = |ranks: &Vec<usize>| {
            let mut ranks = ranks.clone();
            if mirrored {
                ranks.reverse();
            }
            ranks
        };
        match self {
            Pattern::Mesh(ranks) => Pattern::Mesh(turned(ranks)),
            Pattern::Ring(groups) => {
                let mut groups: Vec<_> =
                    groups.iter().filter(|group| !group.is_empty()).map(turned).collect();
                if mirrored {
                    groups.reverse();
                }
                Pattern::Ring(groups)
            }
            Pattern::Nested(parts) => {
                let parts = parts.iter().filter(|part| !part.ranks().is_empty());
                let mut parts: Vec<_> = parts.map(|part| part.tidied(mirrored)).collect();
                if mirrored {
                    parts.reverse();
                }
                Pattern::Nested(parts)
            }
        }
    }

    fn shifted(&self, by: usize) -> Self {
        let shift = |ranks: &Vec<usize>| ranks.iter().map(|rank| rank.saturating_add(by)).collect();
        match self {
            Pattern::Mesh(ranks) => Pattern::Mesh(shift(ranks)),
            Pattern::Ring(groups) => Pattern::Ring(groups.iter().map(shift).collect()),
            Pattern::Nested(parts) => Pattern::Nested(parts.iter().map(|part| part.shifted(by)).collect()),
        }
    }
}

/// So many ranks, or enough to be refused: nobody stores more.
fn too_many_at_most(ranks: usize) -> usize {
    ranks.min(MOST_RANKS + 1)
}

fn groups(sizes: &[usize], first: usize) -> Vec<Vec<usize>> {
    let begins = sizes.iter().scan(first, |next, &size| {
        let begin = *next;
        *next = too_many_at_most(begin.saturating_add(size));
        Some(begin..*next)
    });
    begins.map(Iterator::collect).collect()
}
