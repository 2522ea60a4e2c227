//! Ledger files of models. Each file has a number, and consists of private memory.

use super::LedgerError;
use super::lock::Description;
use super::map::Mapping;
use std::path::{Path, PathBuf};

pub(super) struct Place {
    pub path: PathBuf,
    book: usize,
}

impl Place {
    pub(super) fn open(&self, _write: bool) -> Result<Description, LedgerError> {
        Ok(Description::new(self.book))
    }

    pub(super) fn is_current(&self) -> bool {
        true
    }
}

pub(super) fn create(_path: &Path, _mode: u32, _lasting: bool) -> Result<(), LedgerError> {
    Ok(())
}

pub(super) fn describe(path: &Path) -> std::io::Result<Description> {
    Ok(Description::new(number(path)))
}

fn number(path: &Path) -> usize {
    path.to_string_lossy().parse().expect("a number")
}

/// Opens the ledger of a model, which is empty at first. Its path is a number.
pub(super) fn open(path: &Path, _write: bool) -> Result<(Place, Mapping), LedgerError> {
    let book = number(path);
    let place = Place {
        path: path.to_owned(),
        book,
    };
    let mapping = Mapping::of_memory().map_err(|error| LedgerError::io(path, "map", error))?;
    mapping.content().header.preface.write();
    Ok((place, mapping))
}

pub(super) fn read_words(_: &Description, _offset: u64, _words: &mut [u64]) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

pub(super) fn look(path: &Path, write: bool) -> Result<(Place, Mapping, Description), LedgerError> {
    let (place, mapping) = open(path, write)?;
    let file = Description::new(place.book);
    Ok((place, mapping, file))
}
