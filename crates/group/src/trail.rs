//! Where the events of groups go that outlive the groups: the trail of the nearest lasting group,
//! or the file `.trail` of the root.
//!
//! A group's own ring of events goes with the group. So each event is also written to the trail of
//! the nearest group at or above it that keeps a trail, if no user can read that trail who cannot
//! read the group's own ledger. A job's group at the top of a root has no such group; its events go
//! to the root's file `.trail`, a ledger without members. The file belongs to the root's owner, and
//! only processes of this user write it.

use super::directory::Directory;
use super::member::{Member, Station};
use super::{Access, Group, GroupError, Kind, Members, Root, SYSTEM, contents, user};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{
    Cause, Details, DeviceIndex, EventKind, HOLDERS, Happening, Holding, Ledger, LedgerError,
    Witness,
};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of the file in a root. The names of groups do not begin with a dot.
const TRAIL: &str = ".trail";
/// The owner of the system root.
const SYSTEMS_OWNER: u32 = 0;

impl Root {
    /// Makes the root's trail, if the group's events go there and the root is the caller's own. A
    /// root without a trail works like any other, so errors are ignored.
    pub(super) fn make_trail(&self, group: &Group) {
        let owner = fs::symlink_metadata(&self.path).map(|about| about.uid());
        if group.kind() != Kind::Job || !owner.is_ok_and(|owner| owner == user::effective()) {
            return;
        }
        let lasting = group.upwards().find(|above| above.kind() == Kind::Named);
        if lasting.is_some_and(|above| is_as_private(above.access().ok(), group.access().ok())) {
            return;
        }
        self.make_trail_file();
    }

    fn make_trail_file(&self) {
        let path = self.path.join(TRAIL);
        if let Err(LedgerError::Version { .. }) = Ledger::open_readonly(&path) {
            // Another build of gpulimit has made the file, and this build cannot use it.
            let _ = fs::remove_file(&path);
        }
        let _ = Ledger::create_with_history(&path, 0o600);
    }

    /// Opens this root's trail for writing. The root and its trail are made if they are missing.
    fn own_trail(&self) -> Option<Ledger> {
        self.make().ok()?;
        self.make_trail_file();
        open(&self.path, true).ok().flatten()
    }

    /// Opens the root's trail for reading. Returns `None` if there is none, or if the caller may
    /// not read it. Fails if the file does not belong to the root's owner, or is damaged.
    pub fn trail(&self) -> Result<Option<Ledger>, GroupError> {
        open(&self.path, false)
    }

    /// Returns the GPUs that processes of the root's owner have seen: those of its trail.
    pub fn seen_gpus(&self) -> Vec<DeviceId> {
        let trail = self.trail().ok().flatten();
        let devices = trail.map_or(Vec::new(), |trail| trail.devices());
        devices.into_iter().map(|device| device.id).collect()
    }

    /// Notes GPUs in the root's trail, which is made if it is missing. Does nothing in a root of
    /// another user. Errors are ignored: only GPUs that NVML has lost are then unknown.
    pub fn note_gpus(&self, gpus: &[(DeviceId, Option<u64>)]) {
        if let Some(trail) = self.owners_trail() {
            for (id, capacity) in gpus {
                let _ = trail.device(*id, capacity.unwrap_or(0));
            }
        }
    }

    /// Records in the root's trail that a process outside of all groups uses these bytes of a GPU.
    /// Does nothing where [`Self::note_gpus`] does nothing.
    pub fn record_outside(&self, process: Identity, gpu: DeviceId, bytes: u64) {
        if let Some(trail) = self.owners_trail()
            && let Ok(index) = trail.device(gpu, 0)
        {
            let happening = Happening {
                kind: EventKind::Outside,
                device: Some(index),
                process,
                bytes,
                charged: 0,
                max: u64::MAX,
            };
            trail.record_in(Some(&trail), &happening, &Details::default());
        }
    }

    /// Returns the trail of the caller's own root, which is made if it is missing.
    fn owners_trail(&self) -> Option<Ledger> {
        let owner = fs::symlink_metadata(&self.path).ok()?.uid();
        (owner == user::effective()).then(|| self.own_trail())?
    }

    /// Returns whether a file in the root is a draft of the trail, which a killed process left.
    pub(super) fn is_draft_of_trail(directory: &Directory, name: &str) -> bool {
        contents::is_draft_of(TRAIL, directory, name)
    }
}

/// Opens the trail of the root at `root`.
fn open(root: &Path, write: bool) -> Result<Option<Ledger>, GroupError> {
    let path = root.join(TRAIL);
    let failed = |error| GroupError::io("use", &path, error);
    let opened = match write {
        true => Ledger::open(&path),
        false => Ledger::open_readonly(&path),
    };
    let ledger = match opened {
        Err(LedgerError::Io { error, .. })
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(LedgerError::Damaged { what, .. }) => {
            return Err(failed(io::Error::other(format!("{what}: remove the file"))));
        }
        opened => opened?,
    };
    let about = ledger.metadata().map_err(failed)?;
    let owner = fs::symlink_metadata(root).map_err(failed)?.uid();
    if about.uid() != owner || about.nlink() != 1 {
        let why = "the file belongs to another user than its directory, or has several names \
                   (hard links): remove the file";
        return Err(failed(io::Error::other(why)));
    }
    Ok((!write || owner == user::effective()).then_some(ledger))
}

/// Returns whether all users who can read the ledger of the group above can read the group's own
/// ledger, as far as permissions tell.
fn is_as_private(above: Option<Access>, own: Option<Access>) -> bool {
    let (Some(above), Some(own)) = (above, own) else {
        return false;
    };
    let members = above.members == Members::Owner
        || own.members == Members::All
        || own.members == above.members;
    members && above.owner.is_none_or(|owner| own.admits(owner))
}

fn access(ledger: &Ledger) -> Option<Access> {
    ledger.metadata().ok().map(|about| Access::of_file(&about))
}

/// Returns the name of the group `name` relative to the group `above`; empty for the same group.
fn relative<'a>(name: &'a str, above: &str) -> &'a str {
    name.get(above.len() + 1..).unwrap_or_default()
}

/// Returns an event of this process.
pub(super) fn happening(
    kind: EventKind,
    index: DeviceIndex,
    bytes: u64,
    charged: u64,
    max: u64,
) -> Happening {
    Happening {
        kind,
        device: Some(index),
        process: Identity::of_self(),
        bytes,
        charged,
        max,
    }
}

/// Finds the trail for events of open ledgers.
pub(super) trait Trails {
    /// Records in the ledger, and in the trail where its group's events go, that the memory of a
    /// dead process was uncharged.
    fn record_reaped(&self, ledger: &Ledger, reaped: &Happening);
}

/// A witness whose events reach a trail.
pub(super) struct Traced<'a> {
    /// Knows what the driver still holds.
    pub witness: &'a dyn Witness,
    pub trails: &'a dyn Trails,
    /// Whether memory of dead processes is charged to this process.
    pub adopts: bool,
}

impl Witness for Traced<'_> {
    fn holds_memory(
        &self,
        process: &Identity,
        device: &DeviceId,
        lists_nested: bool,
    ) -> Option<bool> {
        (self.witness).holds_memory(process, device, lists_nested)
    }

    fn is_held_by_nobody(&self, device: &DeviceId, capacity: u64) -> Option<bool> {
        self.witness.is_held_by_nobody(device, capacity)
    }

    fn adopt(&self, process: &Identity, device: &DeviceId, bytes: u64) -> bool {
        self.adopts && self.witness.adopt(process, device, bytes)
    }

    fn record(&self, ledger: &Ledger, reaped: &Happening) {
        self.trails.record_reaped(ledger, reaped);
    }
}

impl Trails for Member {
    fn record_reaped(&self, ledger: &Ledger, reaped: &Happening) {
        let is_its = |station: &Station| std::ptr::eq(&raw const *station.ledger, ledger);
        match self.levels.iter().position(is_its) {
            Some(at) => self.record(at, reaped, ""),
            None => ledger.record(reaped),
        }
    }
}

impl Trails for Group {
    fn record_reaped(&self, ledger: &Ledger, reaped: &Happening) {
        self.record(ledger, reaped, Details::default());
    }
}

impl Member {
    /// Records an event of this process in the group at level `at`. `function` is the function that
    /// made the request.
    pub(super) fn record(&self, at: usize, happening: &Happening, function: &str) {
        let details = Details {
            function,
            ..Details::default()
        };
        self.record_with(at, happening, details);
    }

    /// Records an event with these details, and returns the largest holders on record.
    pub(super) fn record_with(
        &self,
        at: usize,
        happening: &Happening,
        details: Details<'_>,
    ) -> [Option<Holding>; HOLDERS] {
        let own = &self.levels[at];
        let lasting = self.levels[at..]
            .iter()
            .find(|station| station.ledger.keeps_trail())
            .filter(|above| {
                *above.name == *own.name
                    || is_as_private(access(&above.ledger), access(&own.ledger))
            });
        let (trail, group) = match lasting {
            Some(above) => (Some(&*above.ledger), relative(&own.name, &above.name)),
            None => (self.root_trail(), &*own.name),
        };
        let is_for_user = matches!(happening.kind, EventKind::Refusal | EventKind::Recovered);
        let of_user = match trail.is_none() && is_for_user {
            true => self.users_trail(),
            false => None,
        };
        let holders = match (happening.kind, happening.device) {
            // These holders are no members.
            _ if matches!(details.cause, Some(Cause::Outside | Cause::KeepFree)) => details.holders,
            (EventKind::Refusal | EventKind::Oom | EventKind::Kill, Some(index)) => {
                own.ledger.largest(index)
            }
            _ => Default::default(),
        };
        let details = Details {
            group,
            holders,
            home: relative(self.group(), &own.name),
            owner: of_user.map(|_| SYSTEMS_OWNER),
            ..details
        };
        own.ledger.record_in(of_user.or(trail), happening, &details);
        holders
    }

    fn root_trail(&self) -> Option<&Ledger> {
        let open = || Box::new(open(&self.root, true).ok().flatten());
        self.root_trail.get_or_init(open).as_ref()
    }

    /// Returns the trail of the own root of this process's user, who cannot read the trail of the
    /// system root.
    fn users_trail(&self) -> Option<&Ledger> {
        let open = || {
            // A job of root has a view below the system root.
            let is_system = self.root.starts_with(SYSTEM);
            let is_foreign = is_system && user::effective() != SYSTEMS_OWNER;
            is_foreign.then(|| Root::of_user().own_trail()).flatten()
        };
        self.users_trail.get_or_init(|| Box::new(open())).as_ref()
    }
}

impl Group {
    /// Records an event in the group's open ledger, and in the trail where the group's events go.
    /// Finds the largest users of memory itself.
    pub fn record(&self, ledger: &Ledger, happening: &Happening, details: Details<'_>) {
        let holders = match (happening.kind, happening.device) {
            (EventKind::Kill, Some(index)) => ledger.largest(index),
            _ => Default::default(),
        };
        let details = Details { holders, ..details };
        if ledger.keeps_trail() {
            ledger.record_in(Some(ledger), happening, &details);
            return;
        }
        let lasting = self.upwards().skip(1).find_map(|above| {
            let ledger = Ledger::open(&above.ledger_path()).ok()?;
            ledger.keeps_trail().then_some((above, ledger))
        });
        // In their own directory, a user can replace the ledger by a link to another one.
        let lasting = lasting.filter(|(group, above)| {
            is_as_private(access(above), access(ledger)) && group.owns(above).unwrap_or(false)
        });
        let (trail, group) = match lasting {
            Some((group, above)) => {
                let below = relative(self.name(), group.name());
                (Some(above), below)
            }
            None => (open(self.root(), true).ok().flatten(), self.name()),
        };
        let details = Details { group, ..details };
        ledger.record_in(trail.as_ref(), happening, &details);
    }

    /// Records that this process has suspended or resumed a member of the group, or has found it
    /// lost. `bytes` are the suspended bytes on the device; without a device, on all devices.
    pub fn record_suspension(
        &self,
        ledger: &Ledger,
        kind: EventKind,
        process: Identity,
        device: Option<DeviceIndex>,
        bytes: u64,
    ) {
        let happening = Happening {
            kind,
            device,
            process,
            bytes,
            charged: device.map_or(0, |device| ledger.charged(device)),
            max: u64::MAX,
        };
        let details = Details {
            by: Some(Holding::new(Identity::of_self(), 0)),
            ..Details::default()
        };
        self.record(ledger, &happening, details);
    }
}
