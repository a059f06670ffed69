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
mod error;
mod library;

pub use bindings::*;
pub use error::Error;
pub use flux_dylib::{Attempt, Description, LoadError, MissingSymbol, Refusal, Search, Version};
pub use library::{Library, NCCL};

use flux_dylib::Symbols;
use std::ptr::null;

/// A configuration in which everything is left to NCCL: the header's macro of this name.
pub const NCCL_CONFIG_INITIALIZER: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: NCCL_VERSION_CODE,
    blocking: NCCL_CONFIG_UNDEF_INT,
    cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
    minCTAs: NCCL_CONFIG_UNDEF_INT,
    maxCTAs: NCCL_CONFIG_UNDEF_INT,
    netName: null(),
    splitShare: NCCL_CONFIG_UNDEF_INT,
    trafficClass: NCCL_CONFIG_UNDEF_INT,
    commName: null(),
    collnetEnable: NCCL_CONFIG_UNDEF_INT,
    CTAPolicy: NCCL_CONFIG_UNDEF_INT,
    shrinkShare: NCCL_CONFIG_UNDEF_INT,
    nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
    nChannelsPerNetPeer: NCCL_CONFIG_UNDEF_INT,
    nvlinkCentricSched: NCCL_CONFIG_UNDEF_INT,
    graphUsageMode: NCCL_CONFIG_UNDEF_INT,
    numRmaCtx: NCCL_CONFIG_UNDEF_INT,
    maxP2pPeers: NCCL_CONFIG_UNDEF_INT,
    graphStreamOrdering: NCCL_CONFIG_UNDEF_INT,
};
