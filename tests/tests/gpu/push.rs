//! The push kernel on a GPU, by itself and in operations.

use flux::{BackendChoice, Device, Group, GroupConfig};
use flux_tests::pushes::{check, check_beside_full_gpus, check_kernel};

#[test]
fn signals_follow_their_data() {
    let device = Device::cuda(0).expect("this test needs a GPU");
    for sharing in [1, 2, 8, 40] {
        check_kernel(&device, sharing);
    }
}

#[test]
fn operations_are_right_however_shards_are_pushed() {
    let group = |world_size| {
        let mut config = GroupConfig::default();
        config.backend = BackendChoice::Cuda;
        Group::local_with(world_size, config).expect("this test needs a GPU")
    };
    for world_size in [1, 2, 3, 5, 8] {
        check(world_size, &group);
    }
}

#[test]
fn ranks_that_have_a_gpu_each_push_by_copies_whatever_was_asked_for() {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Cuda;
    let gpus = Device::cuda_count().expect("this test needs a GPU");
    check_beside_full_gpus(&Group::local_with(gpus, config).expect("this test needs a GPU"));
}
