//! XML as NCCL uses it: elements with attributes, and no text. Read with the place of everything, written back.

use std::fmt::Write as _;

use quick_xml::Reader;
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};

use crate::position::{Cursor, Position};
use crate::{Error, Result};

/// An element with all of its attributes, known to us or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) children: Vec<Element>,
    /// Where in the file it begins; made-up elements are nowhere.
    pub(crate) at: Position,
}

impl Element {
    pub(crate) fn new(name: &str) -> Element {
        Element { name: name.to_owned(), ..Element::default() }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Element {
        self.attributes.push((name.to_owned(), value.to_string()));
        self
    }

    /// The attribute, trimmed; `None` where it is missing or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.attributes.iter().find(|(key, _)| key == name)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    /// The attribute as a number; `None` where it is missing, empty or no such number.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.parse().ok()
    }

    /// The attribute as a number that must be one; `None` where it is missing or empty.
    pub(crate) fn whole_number(&self, name: &str) -> Result<Option<i64>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| {
            self.error(format!(
                "{name} of <{}> is {text:?}, which is no number; write one, or leave it out",
                self.name
            ))
        })?;
        Ok(Some(number))
    }

    /// That something is wrong with it.
    pub(crate) fn error(&self, reason: String) -> Error {
        Error::BadXml { line: self.at.line, column: self.at.column, reason }
    }

    pub(crate) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }
}

/// Nested deeper or larger than any machine: refused before it costs anything.
const MOST_DEPTH: usize = 64;
const MOST_ELEMENTS: usize = 200_000;

/// Reads one root element.
pub(crate) fn parse(text: &str) -> Result<Element> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    let mut root: Option<Element> = None;
    let mut elements = 0usize;
    let mut cursor = Cursor::new(text);
    loop {
        let offset = usize::try_from(reader.buffer_position()).unwrap_or(text.len());
        // What lies between two tags is text of its own, so an event begins where the one before ended.
        let at = cursor.advance(offset);
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(_) if ends_within_a_tag(text, &reader) => return Err(ends_early(text, &open)),
            Err(error) => {
                let offset = usize::try_from(reader.error_position()).unwrap_or(text.len());
                let Position { line, column } = Position::of(text, offset);
                return Err(Error::BadXml { line, column, reason: error.to_string() });
            }
        };
        let bad = |reason: String| Error::BadXml { line: at.line, column: at.column, reason };
        match event {
            Event::Start(tag) | Event::Empty(tag) if root.is_some() && open.is_empty() => {
                let name = tag.name().as_ref().to_owned();
                return Err(bad(format!("<{name}> stands behind the end of the topology; a file holds one")));
            }
            Event::Start(tag) => {
                elements += 1;
                if open.len() >= MOST_DEPTH || elements > MOST_ELEMENTS {
                    return Err(bad(format!(
                        "elements are nested more than {MOST_DEPTH} deep, or are more than {MOST_ELEMENTS}"
                    )));
                }
                open.push(element(&tag, at).map_err(bad)?);
            }
            Event::Empty(tag) => {
                elements += 1;
                let element = element(&tag, at).map_err(bad)?;
                place(element, &mut open, &mut root);
            }
            // The reader has checked that the name is that of the last open one.
            Event::End(_) => {
                if let Some(element) = open.pop() {
                    place(element, &mut open, &mut root);
                }
            }
            Event::Text(text) if !text.trim().is_empty() => {
                return Err(bad("text stands between the elements; topology files have none".to_owned()));
            }
            Event::CData(_) | Event::GeneralRef(_) => {
                return Err(bad("text stands between the elements; topology files have none".to_owned()));
            }
            Event::Text(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            Event::Eof => break,
        }
    }
    match root {
        Some(root) if open.is_empty() => Ok(root),
        _ => Err(ends_early(text, &open)),
    }
}

fn place(element: Element, open: &mut [Element], root: &mut Option<Element>) {
    match open.last_mut() {
        Some(parent) => parent.children.push(element),
        None => *root = Some(element),
    }
}

fn element(tag: &BytesStart<'_>, at: Position) -> Result<Element, String> {
    let mut attributes: Vec<(String, String)> = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let name = attribute.key.as_ref().to_owned();
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| error.to_string())?;
        attributes.push((name, value.into_owned()));
    }
    let name = tag.name().as_ref().to_owned();
    Ok(Element { name, attributes, children: Vec::new(), at })
}

/// Whether what could not be read reaches to the end of the text: then it was cut off there.
fn ends_within_a_tag(text: &str, reader: &Reader<&[u8]>) -> bool {
    let at = usize::try_from(reader.error_position()).unwrap_or(text.len()).min(text.len());
    text.as_bytes().get(at..).is_some_and(|rest| !rest.contains(&b'>'))
}

fn ends_early(text: &str, open: &[Element]) -> Error {
    let Position { line, column } = Position::of(text, text.len());
    let inside = open.last().map(|element| format!("<{}> of line {}", element.name, element.at.line));
    Error::EndsEarly { line, column, inside }
}

/// Writes the element and what is in it, two spaces deeper for each level, as NCCL does.
pub(crate) fn write(element: &Element) -> String {
    let mut text = String::new();
    write_at(element, 0, &mut text);
    text
}

fn write_at(element: &Element, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    // Writing to a String cannot fail.
    let _ = write!(text, "{indent}<{}", element.name);
    for (name, value) in &element.attributes {
        let _ = write!(text, " {name}=\"{}\"", quick_xml::escape::escape(value.as_str()));
    }
    if element.children.is_empty() {
        text.push_str("/>\n");
        return;
    }
    text.push_str(">\n");
    element.children.iter().for_each(|child| write_at(child, depth + 1, text));
    let _ = writeln!(text, "{indent}</{}>", element.name);
}
