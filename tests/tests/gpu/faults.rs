//! What happens on GPUs when a signal is lost: nothing hangs, neither a kernel nor a stream.

use flux::{BackendChoice, Placement};
use flux_tests::faults;

#[test]
fn a_lost_signal_is_an_error_and_a_new_group_works() {
    faults::check_lost_signals(BackendChoice::Cuda, Placement::Device);
}

#[test]
fn a_signal_lost_on_the_way_through_the_hosts_memory_is_an_error() {
    faults::check_lost_signals(BackendChoice::Cuda, Placement::PinnedHost);
}

#[test]
fn a_call_after_a_fault_is_refused() {
    faults::check_refusal_after_a_fault(BackendChoice::Cuda);
}
