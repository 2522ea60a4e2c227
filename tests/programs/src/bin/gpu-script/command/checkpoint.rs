//! Other processes that are locked, moved off the GPU and back.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, _: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    // The calls pass no options.
    let change = |function: &str| Ok(plain(driver.call(function, &[words.size(1)?, 0])));
    let ask = |function: &str| {
        let mut answer = -1i32;
        let arguments = [words.size(1)?, &raw mut answer as usize];
        let status = driver.call(function, &arguments);
        Ok(format!("{} {answer}", plain(status)))
    };
    let answer: Answer<String> = match words.name() {
        "lock-process" => change("cuCheckpointProcessLock"),
        "checkpoint-process" => change("cuCheckpointProcessCheckpoint"),
        "restore-process" => change("cuCheckpointProcessRestore"),
        "unlock-process" => change("cuCheckpointProcessUnlock"),
        "process-state" => ask("cuCheckpointProcessGetState"),
        "restore-thread" => ask("cuCheckpointProcessGetRestoreThreadId"),
        _ => return Ok(None),
    };
    answer.map(Some)
}
