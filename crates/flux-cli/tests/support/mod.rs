//! What tests of pictures share.

/// Every start tag has its end tag, attributes are quoted, text has no bare `<` or `&`.
pub(crate) fn check_well_formed(xml: &str) {
    let mut open = Vec::new();
    let mut rest = xml;
    while let Some(begin) = rest.find('<') {
        let text = &rest[..begin];
        let escaped = text
            .split('&')
            .skip(1)
            .all(|after| ["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| after.starts_with(entity)));
        assert!(escaped && !text.contains('>'), "text {text:?}");
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        let mut pieces = attributes.split('"');
        let mut names = std::collections::BTreeSet::new();
        while let (Some(key), Some(value)) = (pieces.next(), pieces.next()) {
            let key = key.trim().strip_suffix('=').unwrap_or_else(|| panic!("<{tag}>"));
            assert!(names.insert(key) && !value.contains('<'), "<{tag}>");
        }
        if !closed {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "left open: {open:?}");
}
