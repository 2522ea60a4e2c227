//! Appends reports to files by day.
//!
//! A timer saves reports, because the figures of groups do not outlive a reboot. The figures of a
//! line count from the time when the group was made. So a missed line loses nothing, and the use in
//! a time is the difference of two lines.

use super::line::{By, Line, csv_fields, visit};
use super::saved::TIME;
use crate::figures::fields;
use crate::groups::Selection;
use crate::machine::nvml::Driver;
use crate::shown::{csv, output};
use crate::words::clock::Moment;
use crate::words::failure::{Failure, cannot};
use gpulimit_group::Kind;
use jiff::Timestamp;
use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

/// Appends the lines of groups and users to the file of this day, with the present time. Makes the
/// directory and the file if they are missing; a new file begins with the heads of its columns.
/// Writes after each group, so that the lines of thousands of groups take no memory. Of lines that
/// do not fit on the file system, none is left in the file; nor are those of another report that is
/// saved at that moment. Two reports at once may both write the heads, which a reader takes.
///
/// Makes only the last directory of the path, and says so: a timer with a mistyped path would save
/// where its user does not look.
pub fn append(
    directory: &Path,
    selection: &Selection,
    driver: Option<&Driver>,
) -> Result<ExitCode, Failure> {
    let time = Moment::from(Timestamp::now()).to_string();
    let (day, _) = time.split_once('T').unwrap_or((&time, ""));
    make(directory)?;
    let path = directory.join(format!("{day}.csv"));
    let mut file = open(&path).map_err(cannot("open", &path))?;
    let fields = csv_fields(false);
    let with_time = |time: &str, cells: Vec<String>| [vec![time.to_owned()], cells].concat();
    let length = file.metadata().map_err(cannot("read", &path))?.len();
    let heads = (length == 0).then(|| with_time(TIME, fields::heads(fields.iter().copied())));
    let mut text = csv::lines(heads)?;
    if !ends_a_line(&file, length).map_err(cannot("read", &path))? {
        text.insert(0, '\n');
    }
    let mut written = file.write_all(text.as_bytes());
    if let Some(driver) = driver {
        let gpus = driver.capacities();
        selection
            .roots()
            .iter()
            .for_each(|root| root.note_gpus(&gpus));
    }
    let (status, _) = visit(selection, driver, |_, view| {
        // A job at the top goes before its figures are saved again.
        if written.is_ok() && view.group.kind() == Kind::Named {
            let lines = [By::Group, By::User].map(|by| Line::of(view, by));
            let rows = lines.iter().flatten();
            let cells = |line| with_time(&time, fields::cells(fields.iter().copied(), line));
            let text = csv::lines(rows.map(cells));
            written = text
                .map_err(|failure| Error::other(failure.to_string()))
                .and_then(|text| file.write_all(text.as_bytes()));
        }
    })?;
    written.map_err(|error| {
        // If this fails, the next report still begins a line of its own.
        let _ = file.set_len(length);
        cannot("write", &path)(error)
    })?;
    Ok(status)
}

fn make(directory: &Path) -> Result<(), Failure> {
    match fs::create_dir(directory) {
        Ok(()) => output::note(&format!("made the directory {}", directory.display())),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let above = directory.parent().unwrap_or(directory);
            return Err(Failure::new(format_args!(
                "cannot save in {}: there is no directory {}: correct the path, or make the \
                 directory",
                directory.display(),
                above.display()
            )));
        }
        Err(error) => return Err(cannot("make", directory)(error)),
    }
    Ok(())
}

/// Opens the file. Refuses what another user may have put in its place: a link would lead to
/// another file, and a pipe may wait for ever.
fn open(path: &Path) -> io::Result<File> {
    let opened = File::options()
        .read(true)
        .append(true)
        .create(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let other = || Error::other("it is no regular file, or has several names (links); remove it");
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(other()),
        opened => opened?,
    };
    let about = file.metadata()?;
    match about.is_file() && about.nlink() == 1 {
        true => Ok(file),
        false => Err(other()),
    }
}

/// Returns whether a file of this length is empty or ends with a line feed. Another program, or a
/// machine that lost power, may have left a part of a line.
fn ends_a_line(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else {
        return Ok(true);
    };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}
