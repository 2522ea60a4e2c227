//! Streams and events.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "stream" | "priority-stream" => {
            let (status, stream) = match name {
                "stream" => driver.get("cuStreamCreate", &[1]),
                _ => driver.get("cuStreamCreateWithPriority", &[1, 0]),
            };
            if status == 0 {
                scope.streams.insert(words.at(1)?.to_owned(), stream);
            }
            plain(status)
        }
        "query" => plain(driver.call("cuStreamQuery", &[scope.stream(words.get(1))?])),
        "event" => {
            let (status, event) = driver.get("cuEventCreate", &[0]);
            if status == 0 {
                let stream = scope.stream(words.get(2))?;
                driver.call("cuEventRecord", &[event as usize, stream]);
            }
            scope.keep(words.at(1)?, (status, event))
        }
        "query-event" => plain(driver.call("cuEventQuery", &[scope.value(words.at(1)?)?])),
        "sync-event" => plain(driver.call("cuEventSynchronize", &[scope.value(words.at(1)?)?])),
        "elapsed" => {
            let events = [scope.value(words.at(1)?)?, scope.value(words.at(2)?)?];
            plain(driver.get("cuEventElapsedTime", &events).0)
        }
        "capture" => {
            let stream = scope.stream(words.get(1))?;
            plain(driver.call("cuStreamBeginCapture_v2", &[stream, 0]))
        }
        "capture-v1" => {
            let stream = scope.stream(Some(words.at(1)?))?;
            plain(driver.call("cuStreamBeginCapture", &[stream]))
        }
        "capture-to" => {
            let stream = scope.stream(Some(words.at(1)?))?;
            let graph = scope.value(words.at(2)?)?;
            plain(driver.call("cuStreamBeginCaptureToGraph", &[stream, graph, 0, 0, 0, 0]))
        }
        "recapture" => {
            let stream = scope.stream(Some(words.at(1)?))?;
            let graph = scope.value(words.at(2)?)?;
            plain(driver.call("cuStreamBeginRecaptureToGraph", &[stream, 0, graph, 0, 0]))
        }
        "end-capture" => {
            let mut graph = 0usize;
            let place = &raw mut graph as usize;
            let stream = scope.stream(Some(words.at(1)?))?;
            let status = driver.call("cuStreamEndCapture", &[stream, place]);
            match words.get(2) {
                Some(name) => scope.keep(name, (status, graph as u64)),
                None => plain(status),
            }
        }
        _ => return Ok(None),
    }))
}
