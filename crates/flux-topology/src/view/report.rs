//! A topology in plain words: the tables, then who talks how, and what follows from it.

use std::fmt::Write as _;

use crate::order::ranges;
use crate::table::MOST_SHOWN;
use crate::{Bandwidth, OrderChoice, Topology};

impl Topology {
    /// What `flux topo` prints: the tables of [`Display`](std::fmt::Display), which pairs talk how and how fast,
    /// and which order an AllGather and a ReduceScatter should use, and why.
    pub fn report(&self) -> String {
        let mut text = self.to_string();
        let bandwidths = self.bandwidths();
        if !bandwidths.is_empty() {
            text.push_str("\nwho talks how, one way\n");
            bandwidths.iter().for_each(|bandwidth| text.push_str(&talk(bandwidth, self.device_count())));
        }
        text.push('\n');
        text.push_str(&order(&self.order()));
        text
    }
}

fn talk(bandwidth: &Bandwidth, count: usize) -> String {
    let all = count * count.saturating_sub(1) / 2;
    let pairs = match bandwidth.pairs.len() {
        1 if all == 1 => "the only pair".to_owned(),
        pairs if pairs == all => format!("all {all} pairs"),
        pairs => format!("{pairs} of {all} pairs: {}", list(&bandwidth.pairs)),
    };
    let rate = bandwidth.gb_per_s.map_or_else(|| "not known".to_owned(), |rate| format!("{rate:.1} GB/s"));
    // Writing to a String cannot fail.
    let mut text = String::new();
    let _ = writeln!(text, "  {:5} {pairs}", bandwidth.symbol);
    let _ = writeln!(text, "        {rate} ({})", bandwidth.source);
    text
}

fn list(pairs: &[(usize, usize)]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = pairs.iter().take(SHOWN).map(|(from, to)| format!("{from}-{to}")).collect();
    let more = pairs.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(" "))
}

fn order(choice: &OrderChoice) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "order of AllGather and ReduceScatter: {}", choice.order);
    let _ = writeln!(text, "  because {}", choice.reason);
    if choice.sequence.len() < 2 {
        return text;
    }
    if choice.groups.len() > 1 {
        // Of many, neighbours as a range.
        let many = choice.sequence.len() > MOST_SHOWN;
        let joined = |gpus: &[usize], by: &str| match many {
            true => ranges(gpus.iter().copied()),
            false => gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(by),
        };
        let groups: Vec<String> = choice.groups.iter().map(|group| joined(group, " ")).collect();
        let _ = writeln!(text, "  groups: {}", groups.join(" | "));
        let _ = writeln!(text, "  as a ring: {}", joined(&choice.sequence, "-"));
    }
    if let Some(ring) = &choice.strongest_ring {
        let ring = ranges(ring.iter().copied());
        let _ = writeln!(
            text,
            "  a ring with the most NVLinks at every step, which may be faster: --order ring:{ring}"
        );
    }
    let _ = writeln!(
        text,
        "  to have it: --order {}; if told nothing, flux takes it, one rank on each GPU, unless it expects another order \
         to be faster or has measured that: `flux plan` names the one it takes",
        choice.argument()
    );
    let _ = writeln!(text, "  AllGather: {}", choice.all_gather());
    let _ = writeln!(text, "  ReduceScatter: {}", choice.reduce_scatter());
    text
}
