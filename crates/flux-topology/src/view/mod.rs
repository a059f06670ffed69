//! A topology for people and programs: in plain words, as JSON, as a drawing.

mod json;
mod layout;
mod report;
mod svg;
