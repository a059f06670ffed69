//! The host backend: ordinary memory, real atomics, a thread per stream.

pub(crate) mod memory;
mod stream;
mod wait;

pub use memory::is_available;
pub use stream::{HostEvent, HostStream};
pub use wait::wait;
