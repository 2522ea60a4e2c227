//! The reasons why a process must not be suspended (`cuCheckpointProcess…`), as the process itself
//! knows them. A process with one of them may be lost when its memory comes back.
//!
//! A process cannot know all reasons. MPS, MIG, debuggers and profilers are found by whoever
//! suspends it. Graphics interoperation (`cuGraphics…`) is unknown to both.

/// A reason why a process must not be suspended. Its number is the bit of the word in the ledger,
/// a file format: numbers are never changed or used again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Obstacle {
    /// Linear memory of another process is open.
    OpenedMemory = 0,
    /// An allocation of `cuMemCreate` is imported.
    ImportedMemory = 1,
    /// A memory pool of another process is imported.
    ImportedPool = 2,
    /// Memory of another programming interface is imported.
    ExternalMemory = 3,
    /// A semaphore of another programming interface is imported.
    ExternalSemaphore = 4,
    /// An event of another process is open.
    OpenedEvent = 5,
    /// Linear memory has a handle with which another process can open it.
    SharedMemory = 6,
    /// An allocation of `cuMemCreate` is exported.
    ExportedMemory = 7,
    /// A memory pool is exported.
    ExportedPool = 8,
    /// The process has managed memory, of any kind.
    ManagedMemory = 9,
    /// The process has a multicast object.
    Multicast = 10,
    /// A stream is being captured into a graph.
    Capture = 11,
    /// A GPU can access memory of another one, or could before.
    PeerAccess = 12,
}

impl Obstacle {
    /// All obstacles, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::OpenedMemory,
        Self::ImportedMemory,
        Self::ImportedPool,
        Self::ExternalMemory,
        Self::ExternalSemaphore,
        Self::OpenedEvent,
        Self::SharedMemory,
        Self::ExportedMemory,
        Self::ExportedPool,
        Self::ManagedMemory,
        Self::Multicast,
        Self::Capture,
        Self::PeerAccess,
    ];

    /// Returns the word in which only the bit of this obstacle is set.
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// Returns the obstacles of a word, as texts for people that follow the name of the process.
    /// All bits of later versions are one text.
    pub fn texts(word: u64) -> impl Iterator<Item = &'static str> {
        Self::told(word).map(|(text, _)| text)
    }

    /// Returns the same as [`Self::texts`], and for each obstacle whether it lasts until the
    /// process ends.
    pub fn told(word: u64) -> impl Iterator<Item = (&'static str, bool)> {
        let known = Self::ALL.iter().fold(0, |all, one| all | one.bit());
        let later = (word & !known != 0).then_some("has memory that this version does not know");
        let set = Self::ALL
            .into_iter()
            .filter(move |one| word & one.bit() != 0);
        let known = set.map(|one| (one.text(), one.lasts()));
        known.chain(later.map(|text| (text, false)))
    }

    /// Returns whether the obstacle always lasts until the process ends. Exported memory may, too.
    const fn lasts(self) -> bool {
        matches!(self, Self::OpenedEvent | Self::PeerAccess)
    }

    /// Returns the obstacle as a text for people that follows the name of the process.
    pub const fn text(self) -> &'static str {
        match self {
            Self::OpenedMemory => "has opened memory of another process (cuIpcOpenMemHandle)",
            Self::ImportedMemory => {
                "has imported memory of another process (cuMemImportFromShareableHandle)"
            }
            Self::ImportedPool => {
                "has imported a memory pool of another process \
                 (cuMemPoolImportFromShareableHandle)"
            }
            Self::ExternalMemory => {
                "has imported memory of another interface, such as Vulkan (cuImportExternalMemory)"
            }
            Self::ExternalSemaphore => {
                "has imported a semaphore of another interface, such as Vulkan \
                 (cuImportExternalSemaphore)"
            }
            Self::OpenedEvent => "has opened an event of another process (cuIpcOpenEventHandle)",
            Self::SharedMemory => "has shared memory with other processes (cuIpcGetMemHandle)",
            Self::ExportedMemory => {
                "has exported memory to other processes (cuMemExportToShareableHandle)"
            }
            Self::ExportedPool => {
                "has exported a memory pool to other processes (cuMemPoolExportToShareableHandle)"
            }
            Self::ManagedMemory => {
                "has managed memory (cuMemAllocManaged, __managed__ variables or a managed pool)"
            }
            Self::Multicast => "has a multicast object (cuMulticastCreate)",
            Self::Capture => "captures a stream into a graph (cuStreamBeginCapture)",
            Self::PeerAccess => {
                "has let a GPU access memory of another GPU (cuCtxEnablePeerAccess, \
                 cuMemSetAccess, cuMemPoolSetAccess or cuIpcOpenMemHandle)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_a_file_format() {
        for (number, obstacle) in Obstacle::ALL.into_iter().enumerate() {
            assert_eq!(obstacle as usize, number);
        }
        assert_eq!(Obstacle::Capture.bit(), 1 << 11);
    }

    #[test]
    fn each_bit_has_a_text() {
        assert_eq!(Obstacle::texts(0).count(), 0);
        let two = Obstacle::Multicast.bit() | Obstacle::OpenedMemory.bit();
        let texts = [Obstacle::OpenedMemory.text(), Obstacle::Multicast.text()];
        assert!(Obstacle::texts(two).eq(texts));
        assert_eq!(Obstacle::texts(1 << 63 | 1 << 62 | 1).count(), 2);
        let mut all: Vec<_> = Obstacle::texts(u64::MAX).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), Obstacle::ALL.len() + 1);
    }

    #[test]
    fn some_obstacles_last() {
        let two = Obstacle::PeerAccess.bit() | Obstacle::Capture.bit();
        let lasting: Vec<bool> = Obstacle::told(two).map(|(_, lasts)| lasts).collect();
        assert_eq!(lasting, [false, true]);
    }
}
