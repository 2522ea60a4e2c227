//! Memory of our own in a process.

use crate::case::{Axis, Case, Point};
use crate::run::{Setup, Way};
use std::error::Error;
use std::fmt::Write as _;

/// As many pieces of 4 KiB, and of 2 MiB, as are held at most.
const MANY: [u32; 2] = [1_000_000, 25_000];
/// At most this much for a live allocation: bytes.
const AIM_EACH: f64 = 64.0;
/// At most this much otherwise: bytes.
const AIM_BASE: u64 = 1 << 20;

/// In turns of 4 KiB and of 2 MiB.
static KINDS: [Case; 4] = [
    Case {
        name: "hold-small",
        what: "cuMemAlloc, 4 KiB",
    },
    Case {
        name: "hold-blocks",
        what: "cuMemAlloc, 2 MiB",
    },
    Case {
        name: "hold-async",
        what: "cuMemAllocAsync, 4 KiB",
    },
    Case {
        name: "hold-vmm",
        what: "cuMemCreate, 2 MiB",
    },
];

/// What the library holds in a process with a limit.
pub struct Footprint {
    kind: &'static Case,
    /// With one live allocation: bytes.
    base: u64,
    /// For each further one: bytes.
    each: f64,
}

impl Footprint {
    /// For memory of each kind.
    pub fn all(setup: &Setup) -> Result<Vec<Self>, Box<dyn Error>> {
        let kinds = KINDS.iter().zip(MANY.into_iter().cycle());
        kinds
            .map(|(kind, many)| Self::of(setup, kind, many))
            .collect()
    }

    fn of(setup: &Setup, kind: &'static Case, many: u32) -> Result<Self, Box<dyn Error>> {
        // What a process has beside us differs by some pages from run to run.
        let added = |live| -> Result<u64, Box<dyn Error>> {
            let place = setup.place(Point::on(Axis::Live, live))?;
            let least = |way| {
                let runs = (0..3).map(|_| place.resident(kind, way));
                runs.collect::<Result<Vec<_>, _>>()
                    .map(|all| all.into_iter().min().unwrap_or_default())
            };
            Ok(least(Way::Limited)?.saturating_sub(least(Way::Bare)?))
        };
        let (base, all) = (added(1)?, added(many)?);
        Ok(Self {
            kind,
            base,
            each: all.saturating_sub(base) as f64 / f64::from(many - 1),
        })
    }
}

/// For people and for pages: Markdown.
pub fn table(footprints: &[Footprint]) -> String {
    if footprints.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "| live allocations | with one: KiB | aim | for each further one: bytes | aim |\n|---|--:|--:|--:|--:|\n",
    );
    for Footprint { kind, base, each } in footprints {
        let _ = writeln!(
            table,
            "| {} | {} | ≤ {} | {each:.1} | ≤ {AIM_EACH:.0} |",
            kind.what,
            base / 1024,
            AIM_BASE / 1024
        );
    }
    table
}

/// One object per line.
pub fn print_json(footprints: &[Footprint]) {
    for Footprint { kind, base, each } in footprints {
        println!(
            r#"{{"case": "{}", "base_bytes": {base}, "bytes_per_allocation": {each:.1}}}"#,
            kind.name
        );
    }
}
