//! What is kept for each rank of this process.

use std::ops::{Index, IndexMut, Range};

/// A value for each rank that lives in this process, found by the rank's number in the group. Where all ranks live in one
/// process these are 0, 1, 2 and so on; where each has its own, there is one.
#[derive(Clone, Debug)]
pub struct PerRank<T> {
    first: usize,
    values: Vec<T>,
}

impl<T> PerRank<T> {
    /// A value for each of `ranks`.
    pub fn new(ranks: Range<usize>, value: impl FnMut(usize) -> T) -> Self {
        Self { first: ranks.start, values: ranks.map(value).collect() }
    }

    /// As [`PerRank::new`], or the first error.
    pub fn try_new<E>(ranks: Range<usize>, value: impl FnMut(usize) -> Result<T, E>) -> Result<Self, E> {
        Ok(Self { first: ranks.start, values: ranks.map(value).collect::<Result<_, _>>()? })
    }

    /// What `map` makes of each rank's value.
    pub fn map<U>(self, map: impl FnMut(T) -> U) -> PerRank<U> {
        PerRank { first: self.first, values: self.values.into_iter().map(map).collect() }
    }

    /// What `map` makes of each rank and its value, or the first error.
    pub fn try_map<U, E>(self, mut map: impl FnMut(usize, T) -> Result<U, E>) -> Result<PerRank<U>, E> {
        let (first, ranks) = (self.first, self.ranks());
        let values =
            ranks.zip(self.values).map(|(rank, value)| map(rank, value)).collect::<Result<_, _>>()?;
        Ok(PerRank { first, values })
    }

    /// The ranks, as the group numbers them.
    pub fn ranks(&self) -> Range<usize> {
        self.first..self.first + self.values.len()
    }

    /// `rank`'s value; none if it does not live here.
    pub fn get(&self, rank: usize) -> Option<&T> {
        self.values.get(rank.checked_sub(self.first)?)
    }

    /// `rank`'s value; none if it does not live here.
    pub fn get_mut(&mut self, rank: usize) -> Option<&mut T> {
        self.values.get_mut(rank.checked_sub(self.first)?)
    }

    /// The values, in rank order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// The values, in rank order.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values.iter_mut()
    }

    /// Each rank and its value, in rank order.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, &T)> {
        self.ranks().zip(&self.values)
    }
}

/// One for each rank of a group that lives in this process as a whole.
impl<T> From<Vec<T>> for PerRank<T> {
    fn from(values: Vec<T>) -> Self {
        Self { first: 0, values }
    }
}

/// The rank lives here: whoever does not know asks [`PerRank::get`].
impl<T> Index<usize> for PerRank<T> {
    type Output = T;

    fn index(&self, rank: usize) -> &T {
        &self.values[rank - self.first]
    }
}

impl<T> IndexMut<usize> for PerRank<T> {
    fn index_mut(&mut self, rank: usize) -> &mut T {
        &mut self.values[rank - self.first]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_by_their_numbers_in_the_group() {
        let one = PerRank::new(3..4, |rank| rank * 10);
        assert_eq!((one[3], one.get(3), one.get(0), one.get(4)), (30, Some(&30), None, None));
        assert_eq!(one.pairs().collect::<Vec<_>>(), [(3, &30)]);
        let all = PerRank::from(vec!['a', 'b']);
        assert_eq!((all.ranks(), all[1]), (0..2, 'b'));
        assert!(PerRank::try_new(0..3, |rank| if rank == 1 { Err(rank) } else { Ok(rank) }).is_err());
    }
}
