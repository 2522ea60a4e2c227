//! Reads the files that `report --save` has written.

use super::line::{Subject, User};
use super::span::{Sample, Use};
use crate::shown::output;
use crate::words::failure::{Failure, cannot};
use ::csv::{ReaderBuilder, StringRecord};
use gpulimit_group::check_name;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Reads the lines of all files from the last one before the day of `since`, in milliseconds since
/// 1970. Each save writes a line of each group, so that earlier files tell nothing more.
pub fn read(directory: &Path, since: u64) -> Result<Vec<(Subject, Sample)>, Failure> {
    let day = Timestamp::from_millisecond(i64::try_from(since).unwrap_or(i64::MAX));
    let day = day.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date();
    let mut files: Vec<(Date, PathBuf)> = fs::read_dir(directory)
        .map_err(cannot("read", directory))?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let day = path.file_name()?.to_str()?.strip_suffix(".csv")?;
            Some((day.parse().ok()?, path))
        })
        .collect();
    files.sort_unstable();
    let later = files.partition_point(|(other, _)| *other < day);
    let mut lines = Vec::new();
    for (_, path) in &files[later.saturating_sub(1)..] {
        let wrong = read_file(path, &mut lines).map_err(|error| cannot("read", path)(error))?;
        if wrong > 0 {
            output::note(&format!(
                "left out {wrong} line{} of {}: not written by a report",
                if wrong == 1 { "" } else { "s" },
                path.display()
            ));
        }
    }
    Ok(lines)
}

/// Adds the lines of a file, and returns the number of lines that are not those of a report.
fn read_file(path: &Path, lines: &mut Vec<(Subject, Sample)>) -> std::io::Result<usize> {
    // Opening a pipe would wait for its writer otherwise.
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut reader = ReaderBuilder::new().flexible(true).from_reader(file);
    let heads = reader.headers().cloned().unwrap_or_default();
    let mut wrong = usize::from(heads.get(0).is_some_and(|head| head != TIME));
    for row in reader.records() {
        let line = match row {
            Err(error) => match error.into_kind() {
                ::csv::ErrorKind::Io(error) => return Err(error),
                _ => None,
            },
            Ok(row) if row == heads => continue,
            Ok(row) => line(&row, &heads),
        };
        match line {
            Some(line) => lines.push(line),
            None => wrong += 1,
        }
    }
    Ok(wrong)
}

/// The head of the first column.
pub const TIME: &str = "time";

/// A line of a file.
#[derive(serde::Deserialize)]
struct Saved<'a> {
    time: &'a str,
    group: &'a str,
    root: &'a str,
    gpu: &'a str,
    uid: Option<u32>,
    user: &'a str,
    gib_hours: f64,
    peak: Option<u64>,
    refusals: Option<u64>,
    waits: Option<u64>,
    waited_ms: Option<u64>,
    made: &'a str,
}

fn line(row: &StringRecord, heads: &StringRecord) -> Option<(Subject, Sample)> {
    let saved: Saved<'_> = row.deserialize(Some(heads)).ok()?;
    let user = match (saved.uid, saved.user) {
        (None, "") => None,
        (None, _) => Some(User::Others),
        (Some(uid), _) => Some(User::Id(uid)),
    };
    let counts = [saved.peak, saved.refusals, saved.waits, saved.waited_ms];
    let is_sound = check_name(saved.group).is_ok()
        && !saved.root.contains(char::is_control)
        && saved.gib_hours.is_finite()
        && saved.gib_hours >= 0.0
        && counts.iter().all(|count| count.is_some() == user.is_none());
    let subject = Subject {
        root: saved.root.to_owned(),
        group: saved.group.to_owned(),
        gpu: Some(saved.gpu.parse().ok()?),
        user,
    };
    let sample = Sample {
        time: moment(saved.time)?,
        made: match saved.made {
            "" => None,
            made => Some(moment(made)?),
        },
        used: Use {
            gib_hours: Some(saved.gib_hours),
            peak: saved.peak,
            refusals: saved.refusals,
            waits: saved.waits,
            waited_ms: saved.waited_ms,
            ..Use::default()
        },
    };
    is_sound.then_some((subject, sample))
}

/// Returns a time in milliseconds since 1970.
fn moment(text: &str) -> Option<u64> {
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}
