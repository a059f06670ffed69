//! Shards pushed by copies and by kernel, on the host backend.

use flux::{BackendChoice, Device, Group, GroupConfig};
use flux_tests::pushes::{check, check_kernel};

#[test]
fn signals_follow_their_data() {
    check_kernel(&Device::host(), 2);
}

#[test]
fn operations_are_right_however_shards_are_pushed() {
    let group = |world_size| {
        let mut config = GroupConfig::default();
        config.backend = BackendChoice::Host;
        Group::local_with(world_size, config).unwrap()
    };
    for world_size in [1, 2, 3, 5, 8] {
        check(world_size, &group);
    }
}
