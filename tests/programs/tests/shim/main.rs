//! The preloaded library between real processes and the simulated driver. See tests/README.md.

mod arrays;
mod code;
mod contexts;
mod death;
mod doors;
mod drivers;
mod every_hook;
mod fork;
mod graphs;
mod limits;
mod linear;
mod live_set;
mod mapped;
mod mig;
mod policy;
mod pools;
mod process_lists;
mod random;
mod refusal;
mod runtime;
mod several_gpus;
mod sharing;
mod transparent;
mod view;
mod wrong_input;
