//! Linear and managed memory, and pinned memory of the host.

use super::narrow::{Narrow, dirty};
use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "alloc" => scope.keep(words.at(1)?, driver.get("cuMemAlloc_v2", &[words.size(2)?])),
        "alloc-nowhere" => plain(driver.call("cuMemAlloc_v2", &[0, words.size(1)?])),
        "alloc-over" => {
            let mut place = scope.value(words.at(1)?)?;
            let arguments = [&raw mut place as usize, words.size(2)?];
            plain(driver.call("cuMemAlloc_v2", &arguments))
        }
        "pitch" => {
            let (mut address, mut pitch) = (0u64, 0usize);
            let (width, height) = (words.size(2)?, words.size(3)?);
            let places = [&raw mut address as usize, &raw mut pitch as usize];
            let status = driver.call(
                "cuMemAllocPitch_v2",
                &[places[0], places[1], width, height, 4],
            );
            format!("{} {pitch}", scope.keep(words.at(1)?, (status, address)))
        }
        "alloc-v1" => {
            let mut address = Narrow::new();
            let status = driver.call("cuMemAlloc", &[address.place(), dirty(words.size(2)?)]);
            scope.keep(words.at(1)?, (status, address.value()?))
        }
        "pitch-v1" => {
            let (mut address, mut pitch) = (Narrow::new(), Narrow::new());
            let (width, height) = (dirty(words.size(2)?), dirty(words.size(3)?));
            let arguments = [address.place(), pitch.place(), width, height, dirty(4)];
            let status = driver.call("cuMemAllocPitch", &arguments);
            let address = address.value()?;
            let kept = scope.keep(words.at(1)?, (status, address));
            format!("{kept} {}", pitch.value()?)
        }
        "free-v1" => plain(driver.call("cuMemFree", &[dirty(scope.value(words.at(1)?)?)])),
        "managed" => scope.keep(
            words.at(1)?,
            driver.get("cuMemAllocManaged", &[words.size(2)?, 1]),
        ),
        "pinned" => {
            let size = words.size(2)?;
            let made = match words.get(3) {
                Some("plain") => driver.get("cuMemAllocHost_v2", &[size]),
                Some("v1") => driver.get("cuMemAllocHost", &[dirty(size)]),
                _ => driver.get("cuMemHostAlloc", &[size, 0]),
            };
            scope.keep(words.at(1)?, made)
        }
        "free-pinned" => plain(driver.call("cuMemFreeHost", &[scope.value(words.at(1)?)?])),
        "register-host" => {
            let size = words.size(1)?;
            let own = Box::leak(vec![0u8; size].into_boxed_slice());
            let arguments = [own.as_mut_ptr() as usize, size, 0];
            plain(driver.call("cuMemHostRegister_v2", &arguments))
        }
        "free" => plain(driver.call("cuMemFree_v2", &[scope.value(words.at(1)?)?])),
        "free-number" => plain(driver.call("cuMemFree_v2", &[words.size(1)?])),
        "many" | "fill" => {
            let (count, size) = match name {
                "many" => (words.size(2)?, words.size(3)?),
                _ => (usize::MAX, words.size(2)?),
            };
            let list = scope.lists.entry(words.at(1)?.to_owned()).or_default();
            let (mut status, mut made) = (0, 0);
            while status == 0 && made < count {
                let (answer, address) = driver.get("cuMemAlloc_v2", &[size]);
                status = answer;
                if status == 0 {
                    list.push(address);
                    made += 1;
                }
            }
            format!("{} {made}", plain(status))
        }
        "free-many" => {
            let list = scope.lists.remove(words.at(1)?).unwrap_or_default();
            let failed = list
                .into_iter()
                .map(|address| driver.call("cuMemFree_v2", &[address as usize]))
                .find(|status| *status != 0);
            plain(failed.unwrap_or(0))
        }
        _ => return Ok(None),
    }))
}
