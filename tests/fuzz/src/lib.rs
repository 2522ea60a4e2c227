//! The fuzz targets: functions that pass untrusted bytes to gpulimit, and panic if one of its
//! guarantees is violated.
//!
//! `fuzz/` calls the targets with the inputs of a fuzzer. `cargo test -p gpulimit-fuzz-targets`
//! calls them with the committed corpus and random changes of it.

mod image;
mod ledger;
mod limits;
mod numbers;
mod policy;
mod scratch;
mod text;

/// A fuzz target: a function that processes one kind of untrusted bytes.
pub type Target = fn(&[u8]);

/// All fuzz targets, by the names of their folders in `fuzz/corpus`.
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

/// Returns the fuzz target with this name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
