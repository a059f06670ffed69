//! The header's macros that initialise structs: each struct says which version of it this is.

use crate::{
    nvshmem_team_config_t, nvshmemx_init_args_t, nvshmemx_init_attr_t, nvshmemx_team_uniqueid_t,
    nvshmemx_uniqueid_args_t, nvshmemx_uniqueid_t,
};
use std::ffi::c_int;
use std::ptr::null_mut;

/// How the header marks version `version` of `T`.
const fn mark<T>(version: c_int) -> c_int {
    #[allow(clippy::cast_possible_truncation)] // the structs are smaller than 64 KiB
    let bytes = size_of::<T>() as c_int;
    (version << 16) + bytes
}

/// A unique id, to be filled.
pub const NVSHMEMX_UNIQUEID_INITIALIZER: nvshmemx_uniqueid_t =
    nvshmemx_uniqueid_t { version: mark::<nvshmemx_uniqueid_t>(1), internal: [0; 124] };

/// Arguments for initialising by unique id, to be filled.
pub const NVSHMEMX_UNIQUEID_ARGS_INITIALIZER: nvshmemx_uniqueid_args_t = nvshmemx_uniqueid_args_t {
    version: mark::<nvshmemx_uniqueid_args_t>(1),
    id: null_mut(),
    myrank: -1,
    nranks: -1,
};

/// Arguments for initialising, to be filled.
pub const NVSHMEMX_INIT_ARGS_INITIALIZER: nvshmemx_init_args_t = nvshmemx_init_args_t {
    version: mark::<nvshmemx_init_args_t>(1),
    uid_args: NVSHMEMX_UNIQUEID_ARGS_INITIALIZER,
    content: [0; 96],
};

/// What `nvshmemx_hostlib_init_attr` takes, to be filled.
pub const NVSHMEMX_INIT_ATTR_INITIALIZER: nvshmemx_init_attr_t = nvshmemx_init_attr_t {
    version: mark::<nvshmemx_init_attr_t>(1),
    mpi_comm: null_mut(),
    args: NVSHMEMX_INIT_ARGS_INITIALIZER,
};

/// A team's configuration, to be filled.
pub const NVSHMEM_TEAM_CONFIG_INITIALIZER: nvshmem_team_config_t = nvshmem_team_config_t {
    version: mark::<nvshmem_team_config_t>(2),
    num_contexts: -1,
    uniqueid: nvshmemx_team_uniqueid_t::MAX,
    padding: [0; 48],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_the_headers() {
        assert_eq!(NVSHMEMX_UNIQUEID_INITIALIZER.version, 0x1_0080);
        assert_eq!(NVSHMEMX_INIT_ATTR_INITIALIZER.version, 0x1_0090);
        assert_eq!(NVSHMEMX_INIT_ATTR_INITIALIZER.args.version, 0x1_0080);
        assert_eq!(NVSHMEMX_INIT_ATTR_INITIALIZER.args.uid_args.version, 0x1_0018);
        assert_eq!(NVSHMEM_TEAM_CONFIG_INITIALIZER.version, 0x2_0040);
    }
}
