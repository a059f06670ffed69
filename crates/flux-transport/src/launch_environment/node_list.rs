//! Slurm's shorthand for the names of nodes and for how many tasks each has.

/// The first name of a list such as `gpu[008-011,020],login1`, or `None` if it is no such list.
pub(super) fn first_node(list: &str) -> Option<String> {
    expand(list, 1)?.into_iter().next()
}

/// The names of a list of nodes, at most `most` of them; `None` if it is no such list.
///
/// ```text
/// node[001-003,7],login  →  node001 node002 node003 node7 login
/// rack[1-2]n[0-1]        →  rack1n0 rack1n1 rack2n0 rack2n1
/// ```
pub(super) fn expand(list: &str, most: usize) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for entry in split_outside_brackets(list)? {
        if names.len() >= most {
            break;
        }
        names.extend(expand_entry(entry, most - names.len())?);
    }
    (!names.is_empty()).then_some(names)
}

/// The entries between commas that are in no brackets.
fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let (mut entries, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return None,
            b']' if !inside => return None,
            b'[' => inside = true,
            b']' => inside = false,
            b',' if !inside => {
                entries.push(list[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    entries.push(list[begin..].trim());
    (!inside).then_some(entries)
}

fn expand_entry(entry: &str, most: usize) -> Option<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = entry;
    while let Some(open) = rest.find('[') {
        let close = open + rest[open..].find(']')?;
        let numbers = expand_numbers(&rest[open + 1..close], most)?;
        let before = &rest[..open];
        let longer =
            names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}")));
        names = longer.take(most).collect();
        rest = &rest[close + 1..];
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    names.iter().all(|name| is_name(name)).then_some(names)
}

/// What stands in brackets: numbers and ranges, whose width is that of their first number.
fn expand_numbers(numbers: &str, most: usize) -> Option<Vec<String>> {
    let mut expanded = Vec::new();
    for range in numbers.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let width = first.len();
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if last < first {
            return None;
        }
        expanded.extend(
            (first..=last)
                .take(most.saturating_sub(expanded.len()))
                .map(|number| format!("{number:0width$}")),
        );
    }
    Some(expanded)
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    !name.is_empty() && name.bytes().all(allowed)
}

/// How many tasks the node with this index has, from a list such as `4(x2),3`: two nodes with 4, one with 3.
pub(super) fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut before = 0_usize;
    for entry in list.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        let tasks: usize = tasks.trim().parse().ok()?;
        before = before.checked_add(nodes)?;
        if node < before {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_expanded() {
        let cases = [
            ("node1", "node1"),
            ("node[001-003,7]", "node001 node002 node003 node7"),
            ("node[001-003,7],login", "node001 node002 node003 node7 login"),
            ("a,b-2,c.example", "a b-2 c.example"),
            ("gpu[098-101]", "gpu098 gpu099 gpu100 gpu101"),
            ("rack[1-2]n[0-1]", "rack1n0 rack1n1 rack2n0 rack2n1"),
            ("n[5]-ib", "n5-ib"),
            ("x[1,3],y[2-3]", "x1 x3 y2 y3"),
        ];
        for (list, expected) in cases {
            assert_eq!(expand(list, 100).unwrap().join(" "), expected, "{list}");
            assert_eq!(first_node(list).unwrap(), expected.split(' ').next().unwrap(), "{list}");
        }
        // As many as there are atoms: nobody waits for them.
        assert_eq!(first_node("n[0-18446744073709551615]").unwrap(), "n0");
    }

    #[test]
    fn what_is_no_list_is_none() {
        for list in [
            "",
            ",",
            "a[",
            "a]",
            "a[]",
            "a[1-]",
            "a[3-1]",
            "a[[1]]",
            "a[x]",
            "a b",
            "a[1",
            "[-1]",
            "$(reboot)",
        ] {
            assert_eq!(first_node(list), None, "{list}");
        }
    }

    #[test]
    fn tasks_are_counted_by_node() {
        let cases: [(&str, &[usize]); 4] =
            [("4", &[4]), ("4(x2),3", &[4, 4, 3]), ("2,3(x2)", &[2, 3, 3]), ("1(x3)", &[1, 1, 1])];
        for (list, expected) in cases {
            for (node, &tasks) in expected.iter().enumerate() {
                assert_eq!(tasks_of_node(list, node), Some(tasks), "{list}");
            }
            assert_eq!(tasks_of_node(list, expected.len()), None, "{list}");
        }
        for list in ["", "x", "4(x", "4(xy)", "(x2)"] {
            assert_eq!(tasks_of_node(list, 0), None, "{list}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(list in "[a-c0-9\\[\\],(x) -]{0,20}", node in 0..5_usize) {
            let _ = (expand(&list, 50), tasks_of_node(&list, node));
        }
    }
}
