//! What needs a GPU, in one program: it carries the kernels once.

mod collectives;
mod faults;
mod limits;
mod load;
mod nodes;
mod nvshmem;
mod ops;
mod overlap;
mod processes;
mod push;
mod scaled;
mod speed;
mod table;
mod tiles;
mod trace;
