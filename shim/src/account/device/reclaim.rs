//! Reclaim: in a full group this process gives back bytes that it has charged and does not use.

use gpulimit_ledger::{DeviceIndex, Pressure, Witness};

use super::Device;
use crate::account::request::Request;
use crate::account::rounding::BLOCK;
use crate::account::shared::Heir;
use crate::message;

impl Device {
    /// Gives back what is held unused, because another member has asked for it. Keeps everything
    /// while the group's usage is at or below its `low` setting.
    pub fn give_back_unused(&self) {
        if !self.book.member.is_low(&self.book.device) {
            self.reclaim(true);
        }
    }

    /// Gives back what this process can do without; true when anything came back.
    fn reclaim(&self, trim: bool) -> bool {
        let orphans = self.settle_orphans();
        let spares = self.release_spares();
        let pools = self.process.pools.reclaim(&self.book, trim);
        let graphs = self.graphs.reclaim(&self.book, trim);
        orphans || spares || pools || graphs
    }

    /// Keeps a block that is charged and not needed as this thread's spare, or gives it back.
    pub fn keep_block(&self) {
        if self.spares.own().keep() {
            self.book.add_idle(BLOCK);
        } else {
            self.book.uncharge(BLOCK);
        }
    }

    /// Gives the spare blocks back. True when there was any.
    pub fn release_spares(&self) -> bool {
        let released = self.spares.take_all();
        self.book.uncharge_idle(released * BLOCK);
        released > 0
    }
}

/// The reclaim for one request.
pub(super) struct Reclaim<'a> {
    device: &'a Device,
    request: &'a Request<'a>,
    heir: Heir,
}

impl<'a> Reclaim<'a> {
    #[inline]
    pub fn new(device: &'a Device, request: &'a Request<'a>) -> Self {
        Reclaim {
            device,
            request,
            heir: Heir(device.book.member),
        }
    }
}

impl Pressure for Reclaim<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        self.device.reclaim(self.request.trims)
    }

    fn witness(&self) -> &dyn Witness {
        &self.heir
    }

    fn is_needless(&self) -> bool {
        self.request.is_needless()
    }

    fn tell(&self, line: std::fmt::Arguments<'_>) {
        message::line(line);
    }
}
