//! Objects of other programming interfaces.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let (import, destroy) = match words.get(2) {
        Some("semaphore") => ("cuImportExternalSemaphore", "cuDestroyExternalSemaphore"),
        _ => ("cuImportExternalMemory", "cuDestroyExternalMemory"),
    };
    Ok(Some(match words.name() {
        "external" => {
            let description = [0u64; 16];
            let answer = driver.get(import, &[description.as_ptr() as usize]);
            scope.keep(words.at(1)?, answer)
        }
        "destroy-external" => plain(driver.call(destroy, &[scope.value(words.at(1)?)?])),
        _ => return Ok(None),
    }))
}
