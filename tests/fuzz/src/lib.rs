//! What can be done with bytes that nobody vouches for: one function for each kind, which panics
//! where a promise is broken.
//!
//! `fuzz/` hands them what a fuzzer makes up, `cargo test -p gpulimit-fuzz-targets` the committed
//! corpus and random changes of it.

mod image;
mod ledger;
mod limits;
mod numbers;
mod policy;
mod scratch;
mod text;

/// What is done with bytes of one kind.
pub type Target = fn(&[u8]);

/// All of them, by the names of their folders in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("environment", policy::environment),
    ("image", image::any),
    ("ledger", ledger::any),
    ("limits", limits::any),
    ("lz4", image::lz4),
    ("policy", policy::file),
    ("rules", policy::rules),
    ("text", text::any),
    ("zstd", image::zstd),
];

/// The one of this name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
