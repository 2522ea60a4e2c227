//! Dead processes in ledgers that this process cannot clean, such as those of a read-only mount.

use gpulimit_base::identity::Identity;
use gpulimit_ledger::{Ledger, Witness};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The dead processes of a ledger by slot, and when this process first saw that they are dead.
type Dead = BTreeMap<usize, (Identity, Instant)>;

/// The dead processes by the device and inode number of the ledger.
static DEAD: Mutex<BTreeMap<(u64, u64), Dead>> = Mutex::new(BTreeMap::new());

/// The most ledgers that are remembered. Their groups may be gone, so all are forgotten then.
const LEDGERS: usize = 4_096;

/// Returns the slots that hold memory of dead processes which the driver has freed, and which a
/// process with a writable ledger would clean. None of a writable ledger.
///
/// The time of death of a process may not be in the ledger: processes that look again and again,
/// as `serve` and `top` do, remember it themselves.
pub fn slots(ledger: &Ledger, witness: &dyn Witness) -> Vec<usize> {
    let now = Instant::now();
    let mut all = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let before = all.remove(&ledger.file_id()).unwrap_or_default();
    let mut dead = Dead::new();
    let drained = ledger.drained(witness, |slot, identity| {
        let known = before.get(&slot).filter(|(known, _)| known == identity);
        let since = known.map_or(now, |(_, since)| *since);
        dead.insert(slot, (*identity, since));
        let age = now.duration_since(since).as_millis();
        u64::try_from(age).unwrap_or(u64::MAX)
    });
    if !dead.is_empty() {
        if all.len() >= LEDGERS {
            all.clear();
        }
        all.insert(ledger.file_id(), dead);
    }
    drained
}
