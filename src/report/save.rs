//! Appends reports to files by day.
//!
//! A timer saves reports, because the figures of groups do not outlive a reboot. The figures of a
//! line count from the time when the group was made. So a missed line loses nothing, and the use in
//! a time is the difference of two lines.

use super::{HEADS, Line};
use crate::clock::Moment;
use crate::csv;
use crate::failure::{Failure, cannot};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends lines to the file of this day, with the present time. Makes the directory and the file
/// if they are missing; a new file begins with the heads of its columns.
pub fn append(directory: &Path, lines: impl Iterator<Item = Line>) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0));
    let time = Moment { unix_ms }.to_string();
    let (day, _) = time.split_once('T').unwrap_or((&time, ""));
    fs::create_dir_all(directory).map_err(cannot("make", directory))?;
    let path = directory.join(format!("{day}.csv"));
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(&path)
        .map_err(cannot("open", &path))?;
    // Two processes that save at once write whole lines each, and heads once.
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| cannot("lock", &path)(error.into()))?;
    let with_time = |first: &str, cells: [String; HEADS.len()]| {
        let mut row: [String; HEADS.len() + 1] = Default::default();
        let all = std::iter::once(first.to_owned()).chain(cells);
        row.iter_mut()
            .zip(all)
            .for_each(|(cell, value)| *cell = value);
        row
    };
    let is_new = file.metadata().map_err(cannot("read", &path))?.len() == 0;
    let heads = is_new.then(|| with_time("time", HEADS.map(String::from)));
    let rows = lines.map(|line| with_time(&time, line.cells()));
    let text = csv::lines(heads.into_iter().chain(rows))?;
    file.write_all(text.as_bytes())
        .map_err(cannot("write", &path))
}
