//! Reclaim: in a full group, this process uncharges bytes that it has charged but does not use.

use std::sync::atomic::Ordering;

use gpulimit_ledger::{DeviceIndex, Pressure, Witness};

use super::Device;
use crate::account::request::Request;
use crate::account::rounding::BLOCK;
use crate::account::shared::Heir;
use crate::{message, refusal};

impl Device {
    /// Answers other members: restores this process's charge, if another process has lowered it,
    /// and uncharges unused bytes, unless `low` or `min` protects the group.
    pub fn give_back_unused(&self) {
        self.restore();
        // The group may have begun or ceased to count contexts.
        self.assume(0);
        if !self.book.group.is_low() {
            self.reclaim(true);
        }
    }

    /// Restores this process's charge, if another process has lowered it.
    pub fn restore(&self) {
        self.book.group.restore();
    }

    /// Uncharges the bytes that this process does not need. Returns true when there were such
    /// bytes.
    fn reclaim(&self, trim: bool) -> bool {
        // The charge of calls that were not measured is an estimate, which may be too high.
        let is_due = self.is_inexact()
            || self.driver_part.has_deferred()
            || self.process.pools.left_in_use() > 0;
        let measured = is_due && self.measure().is_some();
        let orphans = self.settle_orphans();
        let spares = self.release_spares();
        let pools = self.process.pools.reclaim(&self.book, trim);
        let graphs = self.graphs.reclaim(&self.book, trim);
        measured || orphans || spares || pools || graphs
    }

    /// Keeps a charged block as the calling thread's spare block. Uncharges the block if the thread
    /// has a spare already.
    pub fn keep_block(&self) {
        if self.spares.own().keep() {
            self.book.add_idle(BLOCK);
        } else {
            self.book.uncharge(BLOCK);
        }
    }

    /// Uncharges the spare blocks of this process. Returns true when there were spare blocks.
    pub fn release_spares(&self) -> bool {
        let released = self.spares.take_all();
        self.book.uncharge_idle(released * BLOCK);
        released > 0
    }
}

/// What this process can do for one request in a full group: reclaim, trimming, and waiting.
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
            heir: Heir(device.book.group.member()),
        }
    }
}

impl Pressure for Reclaim<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        // Calls of the driver would wait until the process is back.
        !self.device.is_away()
            && (self.device.reclaim(self.request.trims) || self.device.recheck_others())
    }

    fn witness(&self) -> &dyn Witness {
        &self.heir
    }

    fn is_needless(&self) -> bool {
        // A suspended process does not wait in line before others.
        self.request.is_needless() || self.device.is_away()
    }

    fn machine_free(&self) -> Option<u64> {
        self.device.looks.store(true, Ordering::Relaxed);
        self.device.machine_free()
    }

    fn function(&self) -> &str {
        let asker = self.request.asker();
        asker.map_or("", |(symbol, _)| refusal::plain(symbol))
    }

    fn tell(&self, line: std::fmt::Arguments<'_>) {
        message::line(line);
    }
}
