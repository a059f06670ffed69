#![doc = include_str!("../README.md")]

// Generated; its names are C's, and so is its documentation.
#[allow(
    missing_docs,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]
#[rustfmt::skip]
mod bindings;
mod device_code;
mod initializers;
mod library;

pub use bindings::*;
pub use device_code::{DeviceCode, NoDeviceCode};
pub use flux_dylib::{Attempt, Description, LoadError, MissingSymbol, Refusal, Search, Version};
pub use initializers::{
    NVSHMEM_TEAM_CONFIG_INITIALIZER, NVSHMEMX_INIT_ARGS_INITIALIZER, NVSHMEMX_INIT_ATTR_INITIALIZER,
    NVSHMEMX_UNIQUEID_ARGS_INITIALIZER, NVSHMEMX_UNIQUEID_INITIALIZER,
};
pub use library::{Library, NVSHMEM};

use flux_dylib::Symbols;
