//! One row of the matrix: a cell for each device, then the CPUs and the NUMA node.

use super::cell;
use super::header::Header;
use super::line::{Line, Token};
use crate::{CpuList, Link, Result};

/// One device's row.
pub(crate) struct Row {
    pub(crate) line: usize,
    /// The column behind its last word.
    pub(crate) end_column: usize,
    /// In the order of the header's devices.
    pub(crate) cells: Vec<Link>,
    /// The column of each cell, or of the word that it is stuck in.
    pub(crate) columns: Vec<usize>,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) numa_node: Option<u32>,
    /// How many fields follow the cells.
    pub(crate) tail_fields: usize,
}

impl Row {
    /// Cells that are stuck together are taken apart, and noted in `glued` with their line and column.
    pub(crate) fn read(header: &Header, line: &Line, glued: &mut Vec<(usize, usize, String)>) -> Result<Row> {
        let wanted = header.labels.len();
        let (mut cells, mut columns): (Vec<Link>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut used = 1;
        for token in line.tokens.iter().skip(1) {
            if cells.len() >= wanted {
                break;
            }
            let found = cell::cells(&token.text);
            if found.is_empty() {
                let reason = format!(
                    "{:?} stands where the {} is expected; a cell is X, NV#, PIX, PXB, PHB, NODE or SYS; the header \
                     names {wanted} devices",
                    token.text,
                    header
                        .labels
                        .get(cells.len())
                        .map_or_else(String::new, |l| format!("cell for {}", l.name)),
                );
                return Err(line.error(token.column, reason));
            }
            if found.len() > 1 {
                glued.push((line.number, token.column, token.text.clone()));
            }
            columns.extend(found.iter().map(|_| token.column));
            cells.extend(found);
            used += 1;
        }
        if cells.len() != wanted {
            let reason = format!(
                "the row has {} cells, and the header names {wanted} devices; copy the row again, whole, and on one \
                 line",
                cells.len()
            );
            return Err(line.error(line.end_column(), reason));
        }
        let behind = line.tokens.get(used..).unwrap_or_default();
        let from = line.tokens.get(used - 1).map_or(0, |last| last.offset + last.text.len());
        let tail = Tail::read(line.text.get(from..).unwrap_or_default(), behind, header.has_numa);
        // N/A and the like are not known; what has digits says something.
        let wrong = |field: &str, what: &str| {
            let begins = field.split_whitespace().next().unwrap_or_default();
            let token = behind.iter().find(|token| token.text.starts_with(begins));
            let reason = format!("{field:?} is no {what}; copy the row again, whole");
            line.error(token.map_or(line.end_column(), |token| token.column), reason)
        };
        let says = |field: &Option<String>| {
            field.clone().filter(|field| field.bytes().any(|byte| byte.is_ascii_digit()))
        };
        let cpus = says(&tail.cpus);
        let cpus = cpus.map(|field| CpuList::parse(&field).ok_or_else(|| wrong(&field, "list of CPUs")));
        let numa_node = says(&tail.numa);
        let numa_node =
            numa_node.map(|field| first_node(&field).ok_or_else(|| wrong(&field, "list of NUMA nodes")));
        Ok(Row {
            line: line.number,
            end_column: line.end_column(),
            cells,
            columns,
            cpus: cpus.transpose()?,
            numa_node: numa_node.transpose()?,
            tail_fields: behind.len(),
        })
    }
}

/// The node with CPUs is the first of a list; the others are memory of GPUs.
fn first_node(list: &str) -> Option<u32> {
    CpuList::parse(list)?;
    list.split([',', '-']).next()?.trim().parse().ok()
}

/// The fields behind the cells.
struct Tail {
    cpus: Option<String>,
    numa: Option<String>,
}

impl Tail {
    fn read(text: &str, tokens: &[Token], has_numa: bool) -> Tail {
        // Tabs tell empty fields from missing ones. nvidia-smi puts one before each field.
        let text = text.trim_start_matches(' ');
        let fields: Vec<String> = match text.starts_with('\t') {
            true => text.split('\t').skip(1).map(|field| field.trim().to_owned()).collect(),
            // Without tabs the first word is the CPUs: it is there where the node is not, and never the other
            // way round.
            false => joined(tokens),
        };
        let field = |index: usize| fields.get(index).filter(|field| !field.is_empty()).cloned();
        Tail { cpus: field(0), numa: field(1).filter(|_| has_numa) }
    }
}

/// The words; a list with a space behind a comma is one.
fn joined(tokens: &[Token]) -> Vec<String> {
    let mut fields: Vec<String> = Vec::new();
    for token in tokens {
        match fields.last_mut().filter(|last| last.ends_with(',')) {
            Some(last) => last.push_str(&token.text),
            None => fields.push(token.text.clone()),
        }
    }
    fields
}
