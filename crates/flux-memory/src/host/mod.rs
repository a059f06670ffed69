//! The host backend: ordinary memory, real atomics, a thread per stream.

mod clock;
mod cores;
pub(crate) mod memory;
pub(crate) mod shared;
mod stream;
mod wait;

pub use clock::now_ns;
pub use cores::Cores;
pub use memory::is_available;
pub use stream::{HostEvent, HostStream};
pub use wait::{is_up, raise, wait};
