//! The handles that the driver has handed out to this process and that are not destroyed yet: of
//! streams, code, graphs and executable graphs.
//!
//! Some driver functions crash when they get the handle of a destroyed object (measured). So,
//! before the program's call, gpulimit passes only handles of this table to driver functions.
//!
//! The table can lack a valid handle, because hooks do not see every object. Every handler then
//! goes one way: it charges the most memory that the call can take (`measured::unknown`), lets the
//! driver answer, adopts the code that the driver has accepted, and measures.

use parking_lot::RwLock;

use crate::abi::Context;
use crate::account::maps::Map;

/// The kind of a driver handle.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// `CUstream`.
    Stream,
    /// `CUfunction` or `CUkernel`. Many functions of the driver accept either.
    Code,
    /// `CUmodule`.
    Module,
    /// `CUlibrary`.
    Library,
    /// `CUgraph`.
    Graph,
    /// A `CUgraphExec` whose kernels were known when it was made.
    Exec,
}

/// The context and the module or library that a handle belongs to. The handle becomes invalid when
/// either of them is destroyed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Origin {
    /// The context that the handle belongs to; 0 for none.
    pub context: Context,
    /// The module or library from which the program got the handle; 0 for none.
    pub owner: usize,
}

/// Handles that were removed from the table together, each with its origin.
pub type Taken = Vec<((Kind, usize), Origin)>;

/// The known handles of a process.
#[derive(Default)]
pub struct Handles(RwLock<Map<(Kind, usize), Origin>>);

impl Handles {
    /// Records a handle that the driver has handed out.
    pub fn insert(&self, kind: Kind, handle: usize, origin: Origin) {
        self.0.write().insert((kind, handle), origin);
    }

    /// Records a handle that the driver has just handed out or accepted. A known handle keeps its
    /// origin.
    pub fn adopt(&self, kind: Kind, handle: usize, origin: Origin) {
        self.0.write().entry((kind, handle)).or_insert(origin);
    }

    /// Returns whether the driver has handed out `handle` and the handle is not destroyed yet.
    pub fn knows(&self, kind: Kind, handle: usize) -> bool {
        self.origin(kind, handle).is_some()
    }

    /// Returns the origin of `handle`; `None` when the handle is unknown.
    #[inline(never)]
    pub fn origin(&self, kind: Kind, handle: usize) -> Option<Origin> {
        self.0.read().get(&(kind, handle)).copied()
    }

    /// Returns the origin of code, of a library or of an executable graph with this handle.
    pub fn origin_of_code(&self, handle: usize) -> Option<Origin> {
        let known = self.0.read();
        let kinds = [Kind::Code, Kind::Exec, Kind::Library, Kind::Module].into_iter();
        (kinds.filter_map(|kind| known.get(&(kind, handle))))
            .next()
            .copied()
    }

    /// Removes `handle` from the table. Call before the driver destroys the handle, because the
    /// driver may reuse its number.
    pub fn take(&self, kind: Kind, handle: usize) -> Taken {
        let key = (kind, handle);
        let origin = self.0.write().remove(&key);
        origin.map(|origin| (key, origin)).into_iter().collect()
    }

    /// Removes all handles of a module or library, and code of unknown origin. Call before the
    /// driver unloads the module or library.
    pub fn take_code(&self, owner: usize) -> Taken {
        let mut known = self.0.write();
        let modules: Vec<usize> = known
            .iter()
            .filter(|((kind, _), origin)| *kind == Kind::Module && origin.owner == owner)
            .map(|((_, module), _)| *module)
            .collect();
        let goes = |(kind, handle): &(Kind, usize), origin: &mut Origin| match kind {
            Kind::Module | Kind::Library => *handle == owner || origin.owner == owner,
            Kind::Code => [0, owner].contains(&origin.owner) || modules.contains(&origin.owner),
            _ => false,
        };
        known.extract_if(goes).collect()
    }

    /// Puts back removed handles, because the driver has refused to destroy their objects.
    pub fn restore(&self, taken: Taken) {
        self.0.write().extend(taken);
    }

    /// Removes the handles that belong to a destroyed context.
    pub fn forget_context(&self, context: Context) {
        self.0
            .write()
            .retain(|_, origin| origin.context != context || context == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(context: Context, owner: usize) -> Origin {
        Origin { context, owner }
    }

    #[test]
    fn a_handle_is_known_until_it_is_taken_out() {
        let handles = Handles::default();
        assert!(!handles.knows(Kind::Stream, 64));
        handles.insert(Kind::Stream, 64, of(7, 0));
        assert!(handles.knows(Kind::Stream, 64));
        assert!(
            !handles.knows(Kind::Graph, 64),
            "a stream handle is not a graph handle"
        );
        assert_eq!(handles.origin(Kind::Stream, 64), Some(of(7, 0)));
        let taken = handles.take(Kind::Stream, 64);
        assert!(!handles.knows(Kind::Stream, 64));
        handles.restore(taken);
        assert!(handles.knows(Kind::Stream, 64));
        assert!(handles.take(Kind::Graph, 64).is_empty());
    }

    #[test]
    fn code_goes_with_its_module_or_library() {
        let handles = Handles::default();
        handles.insert(Kind::Module, 1, of(7, 0));
        handles.insert(Kind::Module, 2, of(7, 100));
        for (code, owner) in [(10, 1), (20, 2), (30, 100), (40, 0), (50, 9)] {
            handles.insert(Kind::Code, code, of(7, owner));
        }
        let known = || [10, 20, 30, 40, 50].map(|code| handles.knows(Kind::Code, code));
        let taken = handles.take_code(100);
        assert_eq!(known(), [true, false, false, false, true]);
        assert!(handles.knows(Kind::Module, 1) && !handles.knows(Kind::Module, 2));
        handles.restore(taken);
        assert_eq!(known(), [true; 5]);
        handles.take_code(1);
        assert_eq!(known(), [false, true, true, false, true]);
    }

    #[test]
    fn handles_of_a_context_go_with_it() {
        let handles = Handles::default();
        handles.insert(Kind::Stream, 64, of(7, 0));
        handles.insert(Kind::Stream, 128, of(8, 0));
        handles.insert(Kind::Graph, 192, Origin::default());
        handles.forget_context(7);
        handles.forget_context(0);
        assert!(!handles.knows(Kind::Stream, 64));
        assert!(handles.knows(Kind::Stream, 128) && handles.knows(Kind::Graph, 192));
    }
}
