//! The order of groups: the options `--sort` and `--reverse` of `show`.

use super::{Figures, Gpu};
use crate::words::order::{self, Direction};
use std::cmp::Ordering;

/// The options for the order of groups.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Sort the groups: names from A to Z, figures from large to small
    #[arg(long, value_name = "KEY", value_enum)]
    sort: Option<Key>,

    /// Reverse the order of --sort; unknown figures stay last
    #[arg(long, requires = "sort")]
    reverse: bool,
}

#[derive(Copy, Clone, clap::ValueEnum)]
enum Key {
    Name,
    Usage,
    Peak,
    Free,
    Refused,
}

impl Args {
    /// Sorts groups as the caller asked. Groups with equal figures are sorted by name.
    pub fn sort(&self, groups: &mut [Figures]) {
        let Some(key) = self.sort else {
            return;
        };
        groups.sort_by(by_name);
        let figure: fn(&Gpu) -> Option<u64> = match key {
            Key::Name if self.reverse => return groups.reverse(),
            Key::Name => return,
            Key::Usage => |gpu| gpu.usage,
            Key::Peak => |gpu| gpu.peak,
            Key::Free => |gpu| gpu.free,
            Key::Refused => |gpu| gpu.refusals,
        };
        order::sort(groups, Direction::Down.reversed(self.reverse), |group| {
            let known = group.gpus.iter().filter_map(figure);
            known.reduce(u64::saturating_add)
        });
    }
}

/// Compares groups by name, each before the groups below it, and then by root.
fn by_name(one: &Figures, other: &Figures) -> Ordering {
    let names = one.name.split('/').cmp(other.name.split('/'));
    names.then_with(|| one.root.cmp(&other.root))
}
