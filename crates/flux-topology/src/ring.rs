//! Rings over GPUs: neighbours should be as near as can be.

use std::cmp::Reverse;

use crate::{LinkKind, Topology};

/// All GPUs, group by group. Within a group each is followed by the nearest that is left, and a group starts with
/// the GPU that is nearest to the last of the group before; of equally near ones, with the first.
pub(crate) fn sequence(topology: &Topology, groups: &[Vec<usize>]) -> Vec<usize> {
    let mut sequence: Vec<usize> = Vec::new();
    for group in groups {
        let mut left = group.clone();
        while !left.is_empty() {
            let nearest = match sequence.last() {
                None => 0,
                Some(&last) => {
                    let distance =
                        |position: &usize| left.get(*position).map(|&to| distance(topology, last, to));
                    (0..left.len()).min_by_key(distance).unwrap_or(0)
                }
            };
            sequence.push(left.remove(nearest));
        }
    }
    sequence
}

fn distance(topology: &Topology, from: usize, to: usize) -> (LinkKind, Reverse<u32>) {
    let link = topology.link(from, to);
    link.map_or((LinkKind::Unknown, Reverse(0)), |link| (link.kind, Reverse(link.nvlinks)))
}

/// A ring through all GPUs that uses only pairs with the most NVLinks: the one that is first in the order of
/// dictionaries, or `None` where there is none, or where looking for it takes too long.
pub(crate) fn strongest(topology: &Topology) -> Option<Vec<usize>> {
    /// More GPUs than in any machine that has such rings.
    const MOST_GPUS: usize = 16;
    const MOST_STEPS: u32 = 200_000;
    let count = topology.device_count();
    if !(3..=MOST_GPUS).contains(&count) {
        return None;
    }
    let nvlinks = |a, b| topology.link(a, b).map_or(0, |link| link.nvlinks);
    let most =
        (0..count).flat_map(|a| (0..count).map(move |b| nvlinks(a, b))).max().filter(|&most| most > 0)?;

    let mut path = vec![0];
    // The next GPU to try at each place of the path.
    let mut next = vec![1];
    for _ in 0..MOST_STEPS {
        let (&last, candidate) = (path.last()?, next.last_mut()?);
        if path.len() == count && nvlinks(last, 0) == most {
            return Some(path);
        }
        let found = (*candidate..count).find(|&to| !path.contains(&to) && nvlinks(last, to) == most);
        match found {
            Some(to) => {
                *candidate = to + 1;
                path.push(to);
                next.push(1);
            }
            None => {
                path.pop();
                next.pop();
            }
        }
    }
    None
}
