//! Fuzz targets: functions that process untrusted bytes, and panic if a guarantee is violated.
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

/// A function that processes one kind of untrusted bytes.
pub type Target = fn(&[u8]);

/// All targets, by the names of their folders in `fuzz/corpus`.
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

/// Returns the target with this name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
