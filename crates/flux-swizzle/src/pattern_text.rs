//! Patterns as text, for command lines and reports.
//!
//! `mesh:0-3`; `ring:0-7`; `ring:0-3/4-7`, the groups of a ring; `mesh:0-3+mesh:4-7`, nested parts, which stand in parentheses where
//! they have parts themselves: `(mesh:0-1+mesh:2-3)+(mesh:4-5+mesh:6-7)`. Ranks are numbers and ranges, separated by commas.

use crate::{MOST_RANKS, Pattern};
use alloc::{string::String, vec::Vec};
use core::{fmt, str::FromStr};

/// Text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPattern {
    /// The part that is not understood.
    pub part: String,
}

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} says not how ranks are connected; write mesh:0-3, ring:0-7, ring:0-3/4-7 (rings by NUMA nodes), or several of them \
             joined by + (islands, machines)",
            self.part
        )
    }
}

impl core::error::Error for BadPattern {}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        nested(text, MOST_LEVELS)
    }
}

/// Deeper than anything that is built: islands, machines, racks, rooms.
const MOST_LEVELS: usize = 8;

fn nested(text: &str, levels: usize) -> Result<Pattern, BadPattern> {
    let inner = |text: &str| match text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        Some(_) if levels == 0 => Err(BadPattern { part: text.into() }),
        Some(text) => nested(text, levels - 1),
        None => part(text),
    };
    let mut depth = 0i32;
    // Those outside of all parentheses.
    let joins = |sign: char| {
        depth += i32::from(sign == '(') - i32::from(sign == ')');
        sign == '+' && depth == 0
    };
    let mut parts = text.split(joins).map(inner).collect::<Result<Vec<_>, _>>()?;
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Ok(Pattern::Nested(parts)),
    }
}

fn part(text: &str) -> Result<Pattern, BadPattern> {
    let bad = || BadPattern { part: text.into() };
    let (kind, groups) = text.split_once(':').ok_or_else(bad)?;
    let mut groups = groups.split('/').map(ranks).collect::<Option<Vec<_>>>().ok_or_else(bad)?;
    match kind {
        "mesh" if groups.len() == 1 => Ok(Pattern::Mesh(groups.remove(0))),
        "ring" => Ok(Pattern::Ring(groups)),
        _ => Err(bad()),
    }
}

/// Too many ranks are none.
fn ranks(text: &str) -> Option<Vec<usize>> {
    let mut ranks = Vec::new();
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_RANKS || ranks.len() > MOST_RANKS {
            return None;
        }
        ranks.extend(first..=last);
    }
    Some(ranks)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Mesh(ranks) => {
                f.write_str("mesh:")?;
                write_ranks(f, ranks)
            }
            Pattern::Ring(groups) => {
                f.write_str("ring:")?;
                separated(f, groups, "/", |f, group| write_ranks(f, group))
            }
            Pattern::Nested(parts) => separated(f, parts, "+", |f, part| match part {
                Pattern::Nested(_) => write!(f, "({part})"),
                _ => write!(f, "{part}"),
            }),
        }
    }
}

fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    separator: &str,
    mut write: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// Neighbours as ranges.
fn write_ranks(f: &mut fmt::Formatter<'_>, ranks: &[usize]) -> fmt::Result {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    separated(f, &runs, ",", |f, &(first, last)| match last - first {
        0 => write!(f, "{first}"),
        _ => write!(f, "{first}-{last}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec};

    #[test]
    fn what_is_written_is_read() {
        for (pattern, text) in [
            (Pattern::full_mesh(4), "mesh:0-3"),
            (Pattern::ring(1), "ring:0"),
            (Pattern::two_level(&[3, 5]), "ring:0-2/3-7"),
            (Pattern::Ring(vec![vec![0, 2, 1], vec![5, 4, 3]]), "ring:0,2,1/5,4,3"),
            (Pattern::islands(&[2, 2]), "mesh:0-1+mesh:2-3"),
            (Pattern::nodes(2, &Pattern::two_level(&[2, 2])), "ring:0-1/2-3+ring:4-5/6-7"),
            (
                Pattern::Nested(vec![Pattern::islands(&[1, 1]), Pattern::Mesh(vec![2])]),
                "(mesh:0+mesh:1)+mesh:2",
            ),
            (
                Pattern::nodes(2, &Pattern::nodes(2, &Pattern::islands(&[1, 1]))),
                "((mesh:0+mesh:1)+(mesh:2+mesh:3))+((mesh:4+mesh:5)+(mesh:6+mesh:7))",
            ),
        ] {
            assert_eq!(pattern.to_string(), text);
            assert_eq!(text.parse(), Ok(pattern));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "",
            "mesh",
            "mesh:",
            "mesh:0/1",
            "star:0-3",
            "ring:3-0",
            "ring:0-",
            "mesh:0+",
            "ring:0-99999999",
            "ring:-1",
            "(mesh:0",
            "mesh:0)",
            "()",
            "(mesh:0+mesh:1)(mesh:2)",
            &alloc::format!("{}mesh:0{}", "(".repeat(99_999), ")".repeat(99_999)),
        ] {
            let bad = text.parse::<Pattern>().unwrap_err();
            assert!(text.contains(&bad.part) && bad.to_string().contains("ring:0-3/4-7"), "{text}");
        }
    }
}
