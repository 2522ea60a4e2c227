//! Memory of our own in a process.

use crate::case::{Axis, Case, Point};
use crate::run::{Resident, Setup, Way};
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
    /// With one live allocation: bytes of the library and of its files.
    base: u64,
    /// Of these, what is no page of a file or of shared memory.
    own: u64,
    /// Beside these, what is NVML's.
    nvml: u64,
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
        let added = |live| -> Result<Resident, Box<dyn Error>> {
            let place = setup.place(Point::on(Axis::Live, live))?;
            let least = |way| -> Result<Resident, Box<dyn Error>> {
                let mut least = place.resident(kind, way)?;
                for _ in 1..3 {
                    let Resident { all, own, nvml } = place.resident(kind, way)?;
                    least.all = least.all.min(all);
                    least.own = least.own.min(own);
                    least.nvml = least.nvml.min(nvml);
                }
                Ok(least)
            };
            let (limited, bare) = (least(Way::Limited)?, least(Way::Bare)?);
            Ok(Resident {
                all: limited.all.saturating_sub(bare.all),
                own: limited.own.saturating_sub(bare.own),
                nvml: limited.nvml.saturating_sub(bare.nvml),
            })
        };
        let (base, many_of_it) = (added(1)?, added(many)?);
        Ok(Self {
            kind,
            base: base.all.saturating_sub(base.nvml),
            own: base.own,
            nvml: base.nvml,
            each: many_of_it.all.saturating_sub(base.all) as f64 / f64::from(many - 1),
        })
    }
}

/// For people and for pages: Markdown.
pub fn table(footprints: &[Footprint]) -> String {
    if footprints.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "| live allocations | with one: KiB | aim | of these its own | NVML's beside it | for each further one: bytes | aim |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for footprint in footprints {
        let Footprint {
            kind,
            base,
            own,
            nvml,
            each,
        } = footprint;
        let _ = writeln!(
            table,
            "| {} | {} | ≤ {} | {} | {} | {each:.1} | ≤ {AIM_EACH:.0} |",
            kind.what,
            base / 1024,
            AIM_BASE / 1024,
            own / 1024,
            nvml / 1024
        );
    }
    table
}

/// One object per line.
pub fn print_json(footprints: &[Footprint]) {
    for footprint in footprints {
        let Footprint {
            kind,
            base,
            own,
            nvml,
            each,
        } = footprint;
        println!(
            r#"{{"case": "{}", "base_bytes": {base}, "own_bytes": {own}, "nvml_bytes": {nvml}, "bytes_per_allocation": {each:.1}}}"#,
            kind.name
        );
    }
}
