//! What the tests of whole operations share: data, references, and running one call of all ranks.

pub mod data;
pub mod epilogues;
pub mod faults;
pub mod groups;
pub mod launch;
pub mod machines;
pub mod meeting;
pub mod pitched;
pub mod pushes;
pub mod run;
pub mod scaled;
pub mod sums;
pub mod table;
pub mod traces;
