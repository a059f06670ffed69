//! The whole table on GPUs, a test for each number of ranks and each place of what peers write to: they take minutes, most
//! of them for setting operations up, and may run side by side in processes of their own.

use flux::Placement;
use flux_tests::groups::on_gpus as group_in;
use flux_tests::table::{CASES, Case, EDGES, check, check_bf16};

fn check_all(placement: Placement, world_size: usize) {
    CASES.into_iter().for_each(|case| check(Case { world_size, ..case }, &group_in(placement)));
}

macro_rules! table {
    ($($name:ident: $placement:ident, $world_size:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check_all(Placement::$placement, $world_size);
            }
        )*
    };
}
table! {
    device_1: Device, 1;
    device_2: Device, 2;
    device_3: Device, 3;
    device_4: Device, 4;
    device_5: Device, 5;
    device_8: Device, 8;
    pinned_host_1: PinnedHost, 1;
    pinned_host_2: PinnedHost, 2;
    pinned_host_3: PinnedHost, 3;
    pinned_host_4: PinnedHost, 4;
    pinned_host_5: PinnedHost, 5;
    pinned_host_8: PinnedHost, 8;
}

#[test]
fn edges() {
    for placement in [Placement::Device, Placement::PinnedHost] {
        EDGES.into_iter().for_each(|case| check(case, &group_in(placement)));
    }
}

/// The portable kernel would run two blocks on an SM: those of ranks that share a GPU must leave whole SMs to the copies for which they
/// wait.
#[test]
fn rows_of_an_odd_pitch() {
    for world_size in [2, 3, 5, 8] {
        check_bf16(Case { m: 4097, n: 128, k: 70, world_size }, &group_in(Placement::Device));
    }
}
