//! The groups that the tests run on.

use flux::{BackendChoice, Group, GroupConfig, Placement};

/// Makes groups of so many ranks on GPUs, whose peers write to `placement`.
pub fn on_gpus(placement: Placement) -> impl Fn(usize) -> Group {
    move |world_size| with(BackendChoice::Cuda, placement, world_size).expect("these tests need a GPU")
}

/// Makes groups of so many ranks on the host, whose peers write to `placement`.
pub fn on_host_in(placement: Placement) -> impl Fn(usize) -> Group {
    move |world_size| with(BackendChoice::Host, placement, world_size).unwrap()
}

/// A group of so many ranks on the host.
pub fn on_host(world_size: usize) -> Group {
    on_host_in(Placement::Device)(world_size)
}

fn with(backend: BackendChoice, placement: Placement, world_size: usize) -> flux::Result<Group> {
    let mut config = GroupConfig::default();
    (config.backend, config.peer_memory) = (backend, placement);
    Group::local_with(world_size, config)
}
