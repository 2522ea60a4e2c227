//! Reads the files that `report --save` has written.

use super::line::{Counts, HEADS, Subject, User};
use super::span::Sample;
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
                "left out {wrong} lines of {} that are not lines of a report",
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
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(file);
    let mut columns = None;
    let mut wrong = 0;
    for row in reader.records() {
        let line = match row {
            Err(error) => match error.into_kind() {
                ::csv::ErrorKind::Io(error) => return Err(error),
                _ => None,
            },
            Ok(row) if columns.is_none() || row.get(0) == Some(TIME) => {
                columns = Columns::of(&row);
                match columns {
                    Some(_) => continue,
                    None => None,
                }
            }
            Ok(row) => columns.as_ref().and_then(|columns| columns.line(&row)),
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

/// Number of columns that are read: all but the last, the uncertain use.
const NEEDED: usize = HEADS.len() - 1;

/// Where the columns of a file are: that of the time, and the others in the order of [`HEADS`].
struct Columns {
    time: usize,
    others: [usize; NEEDED],
}

impl Columns {
    /// Finds the columns in the first line of a file; `None` if one is missing.
    fn of(heads: &StringRecord) -> Option<Self> {
        let place = |name: &str| heads.iter().position(|head| head == name);
        let mut others = [0; NEEDED];
        for (other, head) in others.iter_mut().zip(HEADS) {
            *other = place(head)?;
        }
        let time = place(TIME)?;
        Some(Self { time, others })
    }

    fn line(&self, row: &StringRecord) -> Option<(Subject, Sample)> {
        let [
            group,
            root,
            gpu,
            uid,
            user,
            gib_hours,
            peak,
            refusals,
            waits,
            waited_ms,
            made,
        ] = self.others.map(|column| row.get(column));
        let user = match (uid?, user?) {
            ("", "") => None,
            ("", _) => Some(User::Others),
            (uid, _) => Some(User::Id(uid.parse().ok()?)),
        };
        let number = |text: Option<&str>| text?.parse::<u64>().ok();
        let counts = match user {
            Some(_) => None,
            None => Some(Counts {
                peak: number(peak)?,
                refusals: number(refusals)?,
                waits: number(waits)?,
                waited_ms: number(waited_ms)?,
            }),
        };
        let gib_hours = gib_hours?.parse().ok();
        let subject = Subject {
            root: root
                .filter(|root| !root.contains(char::is_control))?
                .to_owned(),
            group: group.filter(|name| check_name(name).is_ok())?.to_owned(),
            gpu: gpu?.parse().ok()?,
            user,
        };
        let sample = Sample {
            time: moment(row.get(self.time)?)?,
            made: match made? {
                "" => None,
                made => Some(moment(made)?),
            },
            gib_hours: gib_hours.filter(|hours: &f64| hours.is_finite() && *hours >= 0.0)?,
            counts,
        };
        Some((subject, sample))
    }
}

/// Returns a time in milliseconds since 1970.
fn moment(text: &str) -> Option<u64> {
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}
