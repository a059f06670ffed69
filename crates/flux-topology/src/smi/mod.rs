//! The text of `nvidia-smi topo -m`, as it is found in the wild.
//!
//! Columns are told apart by order, not by position: pastes lose margins, expand tabs and glue columns together.
//! The header says how many devices there are; each row must have a cell for each, and each device a row. What can be
//! understood only one way is repaired, with a warning; everything else is an error that says where.

mod cell;
mod header;
mod legend;
mod line;
mod row;

use header::{Header, Label};
use legend::Legend;
use line::Line;
use row::Row;

use crate::position::Position;
use crate::{Device, Error, FileFormat, Link, LinkKind, Nic, Result, Source, Topology};

/// Reads the text.
pub(crate) fn read(text: &str) -> Result<Topology> {
    let lines: Vec<Line> = text.lines().enumerate().map(|(index, text)| Line::new(index + 1, text)).collect();
    let mut found = None;
    for (index, line) in lines.iter().enumerate() {
        if let Some(header) = Header::read(line)? {
            found = Some((index, header));
            break;
        }
    }
    let Some((header_index, header)) = found else {
        return Err(crate::file::unknown("no line begins with the columns GPU0 GPU1 …"));
    };
    Topology::check_count(header.labels.iter().filter(|label| label.is_gpu()).count())?;
    let mut warnings = header.warnings.clone();
    let (rows, rest) = rows(&header, lines.get(header_index + 1..).unwrap_or_default(), &mut warnings)?;
    check_complete(&header, &rows, text, &mut warnings)?;
    let legend = Legend::read(rest, &header, text)?;
    build(&header, &rows, &legend, warnings)
}

/// The rows of the matrix, one for each device or `None`, and the lines behind them.
fn rows<'a>(
    header: &Header,
    lines: &'a [Line],
    warnings: &mut Vec<String>,
) -> Result<(Vec<Option<Row>>, &'a [Line])> {
    let mut rows: Vec<Option<Row>> = header.labels.iter().map(|_| None).collect();
    let mut end = 0;
    let mut glued = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(first) = line.tokens.first() else { continue };
        let device = header.labels.iter().position(|label| label.name == first.text);
        let Some(slot) = device.and_then(|device| rows.get_mut(device)) else {
            // Behind the matrix comes the legend; before its end, something that does not belong there.
            if Label::is_device(&first.text) {
                let reason = format!(
                    "a row for {}, which has no column; copy the header and the rows of one output",
                    first.text
                );
                return Err(line.error(first.column, reason));
            }
            continue;
        };
        if slot.is_some() {
            return Err(line.error(first.column, format!("a second row for {}; leave one", first.text)));
        }
        *slot = Some(Row::read(header, line, &mut glued)?);
        end = index + 1;
    }
    if let Some((line, column, text)) = glued.first() {
        let more = match glued.len() {
            1 => String::new(),
            count => format!(", and so are {} more", count - 1),
        };
        warnings.push(format!("line {line}, column {column}: {text} is taken for several cells{more}"));
    }
    Ok((rows, lines.get(end..).unwrap_or_default()))
}

fn check_complete(
    header: &Header,
    rows: &[Option<Row>],
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let last = rows.iter().flatten().max_by_key(|row| row.line);
    let (line, column) = last.map_or((header.line, 1), |row| (row.line, row.end_column));
    let missing: Vec<&Label> =
        header.labels.iter().zip(rows).filter(|(_, row)| row.is_none()).map(|(label, _)| label).collect();
    let only_nics = missing.iter().all(|label| !label.is_gpu());
    let all_nics = missing.len() == header.labels.iter().filter(|label| !label.is_gpu()).count();
    if only_nics && all_nics && !missing.is_empty() && last.is_some() {
        warnings.push(
            "the rows of the network cards are missing; their columns say as much, but check that nothing else is"
                .to_owned(),
        );
    } else if !missing.is_empty() {
        return Err(Error::RowsMissing { line, column, missing: header::runs(&missing) });
    }
    // Where the text stops in the middle of its last row, that row has fewer fields than its like.
    let tails: Vec<usize> = gpu_rows(header, rows).map(|(_, row)| row.tail_fields).collect();
    let ends_here = text.lines().count() == line && !text.ends_with('\n');
    let is_short = last.is_some_and(|last| {
        gpu_rows(header, rows).any(|(_, row)| row.line == last.line)
            && tails.iter().any(|&fields| fields > last.tail_fields)
    });
    if ends_here && is_short {
        let Position { line, column } = Position::of(text, text.len());
        return Err(Error::EndsEarly { line, column, inside: Some("the last row".to_owned()) });
    }
    Ok(())
}

fn gpu_rows<'a>(header: &'a Header, rows: &'a [Option<Row>]) -> impl Iterator<Item = (usize, &'a Row)> {
    let gpus = header.labels.iter().enumerate().filter(|(_, label)| label.is_gpu());
    gpus.filter_map(|(index, _)| Some((index, rows.get(index)?.as_ref()?)))
}

fn build(
    header: &Header,
    rows: &[Option<Row>],
    legend: &Legend,
    mut warnings: Vec<String>,
) -> Result<Topology> {
    let gpus: Vec<(usize, &Row)> = gpu_rows(header, rows).collect();
    if gpus.is_empty() {
        return Err(Error::NoGpuInFile);
    }
    let device = |(_, row): &(usize, &Row)| Device {
        numa_node: row.numa_node,
        cpus: row.cpus.clone(),
        ..Device::new("GPU")
    };
    let devices: Vec<Device> = gpus.iter().map(device).collect();
    for (position, &(index, _)) in gpus.iter().enumerate() {
        let name = header.labels.get(index).map_or("", |label| label.name.as_str());
        if name != format!("GPU{position}") {
            warnings
                .push(format!("{name} is GPU {position} here: GPUs are numbered in the order of their rows"));
        }
    }
    let cell = |from: usize, to: usize| {
        let (column, row) = (gpus.get(to)?.0, gpus.get(from)?.1);
        row.cells.get(column).cloned()
    };
    let mut links: Vec<Link> = Vec::new();
    for from in 0..gpus.len() {
        for to in 0..gpus.len() {
            let (there, back) = (cell(from, to), cell(to, from));
            let (Some(there), Some(back)) = (there, back) else { continue };
            if (from == to) != (there.kind == LinkKind::Local) {
                let place = |row: &Row| Some((row.line, *row.columns.get(gpus.get(to)?.0)?));
                let (line, column) =
                    gpus.get(from).and_then(|(_, row)| place(row)).unwrap_or((header.line, 1));
                let reason =
                    format!("the cell for GPU{to} in the row of GPU{from} is {there}; X is for a GPU itself");
                return Err(Error::BadMatrix { line, column, reason });
            }
            // One wire cannot be of two kinds: the worse of the two is the safe one.
            let nearer =
                (there.kind, std::cmp::Reverse(there.nvlinks)) < (back.kind, std::cmp::Reverse(back.nvlinks));
            if there != back && from < to {
                warnings
                    .push(format!("GPU{from} to GPU{to} is {there}, and {back} back; the further is taken"));
            }
            links.push(if nearer { back } else { there });
        }
    }
    let nvswitch = match legend.hides_nvlink() && links.iter().all(|link| link.kind != LinkKind::NvLink) {
        true => {
            warnings.push(
                "the text is of `nvidia-smi topo -mp`, which shows PCIe only: NVLinks are not known; use \
                 `nvidia-smi topo -m`"
                    .to_owned(),
            );
            None
        }
        false => through_switch(gpus.len(), &links),
    };
    let nics = nics(header, &gpus, legend);
    let count = gpus.len();
    let link = |from: usize, to: usize| links.get(from * count + to).cloned().unwrap_or_else(Link::unknown);
    let topology = Topology::with_source(Source::File(FileFormat::NvidiaSmi), warnings, devices, link);
    Ok(topology.with_nvswitch(nvswitch).with_nics(nics))
}

fn nics(header: &Header, gpus: &[(usize, &Row)], legend: &Legend) -> Vec<Nic> {
    let columns = header.labels.iter().enumerate().filter(|(_, label)| label.is_nic());
    columns
        .map(|(column, label)| {
            let to_gpu =
                |(_, row): &(usize, &Row)| row.cells.get(column).map_or(LinkKind::Unknown, |cell| cell.kind);
            let name = legend.name_of(&label.name).unwrap_or(&label.name);
            Nic { to_gpus: gpus.iter().map(to_gpu).collect(), ..Nic::new(name) }
        })
        .collect()
}

/// Whether NVLinks go through switches. The text does not say, but no GPU up to Blackwell has more than 18: where
/// as many to each of its peers would be more, they must be the same ones.
fn through_switch(count: usize, links: &[Link]) -> Option<bool> {
    const MOST_LINKS: u32 = 18;
    /// Two cards side by side are bridged by up to so many; more may be a bridge or a part of a larger machine.
    const BRIDGE: u32 = 4;
    let mut pairs = links.iter().filter(|link| link.kind != LinkKind::Local);
    let Some(first) = pairs.next() else { return Some(false) };
    if first.kind != LinkKind::NvLink || pairs.any(|link| link != first) {
        return Some(false);
    }
    let peers = u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(1);
    match first.nvlinks.saturating_mul(peers) {
        links if links > MOST_LINKS => Some(true),
        _ if count > 3 || first.nvlinks <= BRIDGE => Some(false),
        _ => None,
    }
}
