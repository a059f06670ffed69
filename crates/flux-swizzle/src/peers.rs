//! Who is sent to when.

/// The shards a rank receives, in the order they arrive: rank + 1, rank + 2, … up to rank − 1.
pub fn arrival_order(rank: usize, world_size: usize) -> impl Iterator<Item = usize> + Clone {
    (1..world_size).map(move |step| (rank % world_size + step) % world_size)
}

/// The peers a rank pushes its shard to, in order: rank − 1, rank − 2, … When every rank keeps to it, each receives in
/// [`arrival_order`], and in every step each rank is sent to by exactly one other.
pub fn push_order(rank: usize, world_size: usize) -> impl Iterator<Item = usize> + Clone {
    (1..world_size).map(move |step| (rank % world_size + world_size - step) % world_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_arrive_in_arrival_order() {
        for world_size in 1..18 {
            for receiver in 0..world_size {
                for (step, shard) in arrival_order(receiver, world_size).enumerate() {
                    assert_eq!(push_order(shard, world_size).nth(step), Some(receiver));
                }
            }
        }
    }

    #[test]
    fn a_world_of_one_or_none_has_no_peers() {
        assert_eq!(arrival_order(0, 1).count() + push_order(0, 0).count(), 0);
    }
}
