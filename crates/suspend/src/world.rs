//! What the procedure needs of the driver, the ledgers and the GPUs.

use gpulimit_ledger::Errand;

/// The state of a process, as the driver reports it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// The process runs.
    Running,
    /// The driver's calls of the process wait. Its memory is on the GPUs.
    Locked,
    /// The driver's calls of the process wait. Its memory is on the host.
    Checkpointed,
    /// The driver moves the memory at this moment.
    Moving,
    /// The driver has given the process up.
    Failed,
    /// The process has ended.
    Gone,
}

/// The driver, the ledgers and the GPUs, for an actor that has the right to act on each process.
/// All functions succeed, and do nothing, for a process that has ended.
pub trait World {
    /// Names a process.
    type Process: Copy + PartialEq;
    /// Why a step failed.
    type Error;

    /// Asks the driver for the state of a process. Waits while the driver moves its memory.
    fn state(&self, process: Self::Process) -> Result<State, Self::Error>;
    /// Closes the gate of a process: holds back the calls that the driver does not make wait, until
    /// [`World::admit`]. Returns the mark of the gate once none of them is under way. Fails if that
    /// takes too long.
    fn hold_back(&self, process: Self::Process) -> Result<u64, Self::Error>;
    /// Returns whether the gate still has this mark, and none of its calls is under way. A thread
    /// of the process opens the gate if it takes the actor for dead. Fails if the time is over.
    fn is_held_back(&self, process: Self::Process, mark: u64) -> Result<bool, Self::Error>;
    /// Lets the driver's calls of a process wait, after those under way. Fails if that takes too
    /// long.
    fn lock(&self, process: Self::Process) -> Result<(), Self::Error>;
    /// Moves the memory of a locked process to the host. A process without memory stays locked.
    fn checkpoint(&self, process: Self::Process) -> Result<(), Self::Error>;
    /// Moves the memory of a checkpointed process back to the GPUs. The process stays locked, and
    /// its threads unlock it if the actor dies. Returns the driver's answer. Fails at once if the
    /// process is stopped: the driver was not asked.
    fn restore(&self, process: Self::Process) -> Result<Result<(), Self::Error>, Self::Error>;
    /// Lets the driver's calls of a locked process go on.
    fn unlock(&self, process: Self::Process) -> Result<(), Self::Error>;

    /// Opens the gate of a process that runs or has ended. The process has its charges.
    fn admit(&self, process: Self::Process);

    /// Waits a moment until a process is not stopped. Fails if it stays stopped: the driver would
    /// not answer.
    fn ready(&self, process: Self::Process) -> Result<(), Self::Error>;
    /// Checks that a locked process has no obstacle to its suspension.
    fn check(&self, process: Self::Process) -> Result<(), Self::Error>;
    /// Waits until no GPU lists a checkpointed process any more.
    fn await_absence(&self, process: Self::Process) -> Result<(), Self::Error>;

    /// Returns the errand in the slot of a process.
    fn errand(&self, process: Self::Process) -> Errand;
    /// Writes the errand into the slot of a process.
    fn set_errand(&self, process: Self::Process, errand: Errand);
    /// Moves the charges of a checkpointed process to its suspended bytes, at every level. Charges
    /// that were moved before stay so.
    fn move_out(&self, process: Self::Process) -> Result<(), Self::Error>;
    /// Moves the suspended bytes of a process back to its charges, at every level, and above the
    /// limits if need be.
    fn take_back(&self, process: Self::Process) -> Result<(), Self::Error>;
    /// Forgets what was written down about the memory of a process when it was checkpointed.
    fn forget(&self, process: Self::Process);
    /// Charges the suspended bytes of all processes in the actor's own slots, at every level. Waits
    /// for room, and fails at once if there can never be enough.
    fn charge(&mut self, set: &[Self::Process]) -> Result<(), Self::Error>;
    /// Waits until the GPUs have room for the memory of all processes, and holds as much of it as
    /// the actor has charged.
    fn hold(&mut self, set: &[Self::Process]) -> Result<(), Self::Error>;
    /// Moves the suspended bytes of a process back to its charges, and gives the charges of the
    /// actor up for that.
    fn hand_over(&mut self, process: Self::Process) -> Result<(), Self::Error>;
    /// Gives up the room on the GPUs that is held for a process.
    fn release(&mut self, process: Self::Process);
    /// Gives up everything that the actor has charged and holds.
    fn give_back(&mut self);

    /// Fails if the actor was told to stop.
    fn go_on(&self) -> Result<(), Self::Error>;
    /// Makes the actor finish what it does next, which undoes its work, whoever tells it to stop.
    /// [`World::hold`] waits for a short time only.
    fn turn_back(&mut self);
    /// Reports that the driver could not bring the memory of a process back, for `why`.
    fn report_lost(&self, process: Self::Process, why: Self::Error);
}
